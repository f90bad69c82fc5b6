"""Why a hidden test failed, out of the log of its run: the error line, and the part of the log about it.

It reads the reports of pytest and unittest, and Hone's own words for a session that did not run to its end.
A log is the tail of an output that tested code can write to: it explains a verdict and never decides it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from hone.grading.controls import split_log
from hone.types import Checks, TestStatus, Verdict
from hone.view.records import TestLine, VerdictView

EXCERPT_LINES = 60  # of a log about one test
ORDER = (
    TestStatus.FAILED,
    TestStatus.ERROR,
    TestStatus.MISSING,
    TestStatus.SKIPPED,
    TestStatus.XFAILED,
    TestStatus.PASSED,
)
PASSED = (TestStatus.PASSED, TestStatus.SKIPPED, TestStatus.XFAILED)

_UNITTEST = re.compile(r"^={20,}\n(?:FAIL|ERROR): (?P<head>.+)\n(?:.+\n)?-{20,}\n", re.MULTILINE)
_PYTEST = re.compile(r"^_{3,} (?P<head>.+?) _{3,}$", re.MULTILINE)
_PYTEST_ENDS = re.compile(r"^(?:={3,} .*={3,}|!{3,} .*!{3,})$", re.MULTILINE)
_UNITTEST_ENDS = re.compile(r"^-{20,}\nRan \d+ tests?", re.MULTILINE)
_SUMMARY = re.compile(r"^(?:FAILED|ERROR) (?P<test>\S.*?)(?: - (?P<why>.*))?$", re.MULTILINE)
_COLLECTING = re.compile(r"^ERROR collecting (?P<file>\S+)$")
_LOADER = re.compile(r"(?:unittest\.loader\.)?(?:_FailedTest|ModuleImportFailure|LoadTestsFailure)")
_ERROR = re.compile(
    r"^(?:E\s+)?(?P<name>(?:\w+\.)*\w*(?:Error|Exception|Warning|Exit|Interrupt|Failed|Failure|Timeout))\b"
    r"(?::\s*(?P<text>.*))?$"
)
_STOPPED = re.compile(r"^the test session was stopped by (?P<name>\w+) ?(?P<text>.*)$", re.MULTILINE)
_WHOLE = re.compile(
    r"^(?:.*(?:did not run to its end|stopped after|the sandbox was lost|took its sandbox down|"
    r"skipped or xfailed, but not|timed out).*)$",
    re.MULTILINE,
)


@dataclass(frozen=True, slots=True)
class _Part:
    """The part of a log about one test or one file."""

    head: str
    text: str


def verdict_view(verdict: Verdict, checks: Checks | None = None) -> VerdictView:
    """Return a verdict with the reason of each failed test; `checks`: of the task, where it is at hand."""
    controls = verdict.controls
    return VerdictView(
        resolved=verdict.resolved,
        applied=verdict.applied,
        score=verdict.score,
        tampered=verdict.tampered,
        tests=explained_tests(verdict, checks),
        controls={"planned": controls.planned, "failed": controls.failed, "passed": controls.passed},
        log=verdict.log,
        seconds=verdict.seconds,
    )


def explained_tests(verdict: Verdict, checks: Checks | None) -> tuple[TestLine, ...]:
    """Return every hidden test and why it failed, failed ones first."""
    lines = [_line(name, status, verdict, checks) for name, status in verdict.tests.items()]
    return tuple(sorted(lines, key=lambda line: ORDER.index(line.status)))


def _line(name: str, status: TestStatus, verdict: Verdict, checks: Checks | None) -> TestLine:
    why, excerpt = ("", "") if status in PASSED else explain(name, status, verdict)
    return TestLine(name=name, status=status, kind=_kind(name, checks), why=why, excerpt=excerpt)


def _kind(name: str, checks: Checks | None) -> str:
    if checks is None:
        return ""
    if name in checks.fail_to_pass:
        return "fail_to_pass"
    return "pass_to_pass" if name in checks.pass_to_pass else ""


def explain(name: str, status: TestStatus, verdict: Verdict) -> tuple[str, str]:
    """Return why a test did not pass, in one line, and the part of the log about it ("": none).

    Example: a test of a file that cannot be imported -> ("ImportError: cannot import name 'area' ...", ...).
    """
    if not verdict.applied:
        return _last_line(verdict.log) or "the patch could not be applied", ""
    first, second, of_second = split_log(verdict.log)
    log = second if name in of_second else first
    parts = _parts(log)
    part = _of_test(name, parts) or _of_file(name, parts)
    if part is not None:
        return _error_line(part.text) or part.head, _cut(part.text)
    if summary := _summary(name, log):
        return summary
    stopped = _STOPPED.search(log)
    if stopped is not None:
        return _stop(stopped), _cut(log)
    if status is not TestStatus.MISSING:
        return "the log holds nothing about this test", ""
    whole = [found[0].strip() for found in _WHOLE.finditer(log)]
    if whole:
        return f"not run: {whole[-1]}", _cut(log)
    return "not run: the log does not mention it" if log.strip() else "not run: there is no log", ""


def _stop(found: re.Match[str]) -> str:
    text = found["text"].strip()
    return f"{found['name']}: {text}" if text else found["name"]


@functools.lru_cache(maxsize=4)
def _parts(log: str) -> tuple[_Part, ...]:
    """Return the parts of a log about single tests or files, of pytest and of unittest, in order."""
    parts: list[_Part] = []
    for pattern, ends in ((_UNITTEST, _UNITTEST_ENDS), (_PYTEST, _PYTEST_ENDS)):
        heads = list(pattern.finditer(log))
        for number, head in enumerate(heads):
            stop = heads[number + 1].start() if number + 1 < len(heads) else len(log)
            end = ends.search(log, head.end(), stop)
            text = log[head.start() : stop if end is None else end.start()]
            parts.append(_Part(head["head"].strip(), text.strip("\n")))
    return tuple(parts)


def _of_test(name: str, parts: Sequence[_Part]) -> _Part | None:
    """Return the part about a test: `tests/test_a.py::Case::test_x[1]` or `test_x (tests.test_a.Case)`."""
    file, dotted, short = _names(name)
    found = [part for part in parts if _names_test(part.head, dotted, short)]
    same_file = [part for part in found if file and file in part.text]
    return (same_file or found or [None])[0]


def _names(name: str) -> tuple[str, str, str]:
    """Return a test's file, dotted name and name in the file: "a.py", "a.Case.test_x", "Case.test_x"."""
    if "::" in name:
        file, _, rest = name.partition("::")
        short = rest.replace("::", ".")
        return file, f"{file.removesuffix('.py').replace('/', '.')}.{short}", short
    unittest = re.fullmatch(r"(\w+) \(([\w.]+)\)", name)
    if unittest is None:
        return "", name, name
    method, where = unittest[1], unittest[2].removesuffix(f".{unittest[1]}")
    return "", f"{where}.{method}", f"{where.rpartition('.')[2]}.{method}"


def _names_test(head: str, dotted: str, short: str) -> bool:
    """Return whether the head of a part names a test: "Case.test_x" or "test_x (tests.a.Case.test_x)"."""
    head = re.sub(r"^ERROR at (?:setup|teardown) of ", "", head)
    unittest = re.match(r"(?P<method>\w+) \((?P<where>[\w.<>]+)\)", head)
    if unittest is None:
        return head == short or head == short.partition("[")[0]
    method, where = unittest["method"], unittest["where"]
    full = where if where.endswith(f".{method}") else f"{where}.{method}"
    plain = dotted.partition("[")[0]
    return plain == full or plain.endswith(f".{full}") or full.endswith(f".{plain}")


def _of_file(name: str, parts: Sequence[_Part]) -> _Part | None:
    """Return the part about the file of a test that could not be imported."""
    file, dotted, _ = _names(name)
    for part in parts:
        collecting = _COLLECTING.match(part.head)
        if collecting is not None and file and _same_file(collecting["file"], file):
            return part
        module = part.head.partition(" ")[0].removeprefix("setUpClass").strip("() ")
        if _LOADER.search(part.head) and (dotted.startswith(f"{module}.") or f".{module}." in dotted):
            return part
        of_class = re.match(r"(?:setUpClass|setUpModule|tearDownClass) \((?P<where>[\w.]+)\)", part.head)
        if of_class is not None and f".{dotted}.".find(f".{of_class['where']}.") >= 0:
            return part
    return None


def _same_file(one: str, other: str) -> bool:
    return one == other or one.endswith(f"/{other}") or other.endswith(f"/{one}")


def _summary(name: str, log: str) -> tuple[str, str] | None:
    """Return what pytest's short summary says of a test or of its file; None: nothing."""
    for line in _SUMMARY.finditer(log):
        if line["test"] == name or ("::" not in line["test"] and name.startswith(f"{line['test']}::")):
            return (line["why"] or "").strip() or line[0], line[0]
    return None


def _error_line(text: str) -> str:
    """Return the line of a traceback that names the error: the last one, with what pytest prints after it."""
    lines = text.split("\n")
    found = [match for line in lines if (match := _ERROR.match(line.rstrip())) is not None]
    if found:
        last = found[-1]
        words = (last["text"] or "").strip()
        return f"{last['name']}: {words}" if words else last["name"]
    marked = [line[1:].strip() for line in lines if re.match(r"E\s+\S", line)]
    return marked[0] if marked else ""


def _last_line(text: str) -> str:
    return next((line.strip() for line in reversed(text.split("\n")) if line.strip()), "")


def _cut(text: str) -> str:
    """Return the text, without the middle where it is long."""
    lines = text.strip("\n").split("\n")
    if len(lines) <= EXCERPT_LINES:
        return "\n".join(lines)
    half = EXCERPT_LINES // 2
    return "\n".join([*lines[:half], f"... {len(lines) - 2 * half} lines ...", *lines[-half:]])


def count_statuses(tests: Mapping[str, TestStatus]) -> dict[str, int]:
    """Return how many tests have each status, the failed ones first."""
    counts = {status.value: sum(s is status for s in tests.values()) for status in ORDER}
    return {status: number for status, number in counts.items() if number}
