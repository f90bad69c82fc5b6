"""The log parsers and pass rules of the SWE-bench harness; a log may be refused with a reason.

A log parser returns {test: status}; `Edition` states how the two editions in use differ. The patch under test
can write to a log, so a log is used only where a data set requires it. Repeated markers and a failing exit
code without a failing test are refused. Source: the `swebench` package, versions 4.1 and 5.0.2.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from types import SimpleNamespace
from typing import Any

from hone.grading import edition4
from hone.grading.errors import GraderError, LogRefused, MissingExtra
from hone.tasks.formats import r2e
from hone.types import Task

Statuses = Mapping[str, str]  # test id -> PASSED, FAILED, ERROR, SKIPPED or XFAIL, as the parsers write them

# Further rules of data sets; single tests count as in `Rule.PASS_AND_FAIL`.
COLLECTED = "collected"  # all collected tests must pass, and no named test may be missing
EXACT = "exact"  # the statuses of all tests equal the task's `metadata["expected"]`
_PASSING = frozenset({"PASSED", "XFAIL"})


class Edition(StrEnum):
    """Edition of the harness.

    V5 counts a skipped fail-to-pass test as failed and a skipped pass-to-pass test as kept, matches ids that
    are cut off in their parameters by their beginning, and refuses a log unless something shows that tests
    ran. V4 does not count skipped tests, and some of its parsers are others; it is for Python repositories.
    """

    V4 = "4"
    V5 = "5"


class Rule(StrEnum):
    PASS_AND_FAIL = "pass_and_fail"  # a test counts when it is reported as passed  # noqa: S105
    FAIL_ONLY = "fail_only"  # a test counts unless it is reported as failed


class Resolution(StrEnum):
    FULL = "RESOLVED_FULL"
    PARTIAL = "RESOLVED_PARTIAL"  # some fail-to-pass tests pass, and all pass-to-pass tests do
    NO = "RESOLVED_NO"


@dataclass(frozen=True, slots=True, kw_only=True)
class Counted:
    """The tests of one list of a task; a test in neither tuple does not count."""

    success: tuple[str, ...]
    failure: tuple[str, ...]

    @property
    def fraction(self) -> float:
        """Success among the counted tests; 1 when none counts."""
        total = len(self.success) + len(self.failure)
        return len(self.success) / total if total else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    fail_to_pass: Counted
    pass_to_pass: Counted

    @property
    def resolution(self) -> Resolution:
        if self.pass_to_pass.fraction < 1 or self.fail_to_pass.fraction == 0:
            return Resolution.NO
        return Resolution.FULL if self.fail_to_pass.fraction == 1 else Resolution.PARTIAL


def count(
    statuses: Statuses,
    fail_to_pass: Sequence[str],
    pass_to_pass: Sequence[str],
    *,
    rule: Rule = Rule.PASS_AND_FAIL,
    edition: Edition = Edition.V5,
) -> Report:
    """Return which of a task's tests count as success.

    >>> count({"a": "PASSED", "b": "SKIPPED"}, ["a"], ["b"]).resolution
    <Resolution.FULL: 'RESOLVED_FULL'>
    """
    return Report(
        fail_to_pass=_count(statuses, fail_to_pass, rule, edition, skipped_is=False),
        pass_to_pass=_count(statuses, pass_to_pass, rule, edition, skipped_is=True),
    )


def find(test: str, statuses: Statuses) -> str | None:
    """Return the status of a test, or None. Edition 5 matches a cut-off id by its beginning.

    An id is cut off when it has more `[` than `]`; its candidates must agree on whether they pass.
    """
    if test in statuses:
        return statuses[test]
    if test.count("[") > test.count("]"):
        candidates = [status for name, status in statuses.items() if name.startswith(test)]
        if candidates and len({status in _PASSING for status in candidates}) == 1:
            return candidates[0]
    return None


def _count(
    statuses: Statuses, tests: Sequence[str], rule: Rule, edition: Edition, *, skipped_is: bool
) -> Counted:
    found = {test: _succeeds(test, statuses, rule, edition, skipped_is=skipped_is) for test in tests}
    return Counted(
        success=tuple(test for test in tests if found[test] is True),
        failure=tuple(test for test in tests if found[test] is False),
    )


def _succeeds(
    test: str, statuses: Statuses, rule: Rule, edition: Edition, *, skipped_is: bool
) -> bool | None:
    """Return None for a test that does not count."""
    if rule is Rule.FAIL_ONLY:
        return statuses.get(test) != "FAILED"
    status = find(test, statuses) if edition is Edition.V5 else statuses.get(test)
    if status in _PASSING:
        return True
    if status == "SKIPPED":
        return skipped_is if edition is Edition.V5 else None
    return False if status in (None, "FAILED", "ERROR") else None


START, END, EXIT_CODE = (
    f">>>>> {words}" for words in ("Start Test Output", "End Test Output", "Test Exit Code")
)
_BROKEN = {
    ">>>>> Patch Apply Failed": "the patch did not apply",
    ">>>>> Reset Failed": "the repository could not be reset",
    ">>>>> Tests Errored": "the tests could not be run",
    ">>>>> Tests Timed Out": "the tests ran out of time",
}
BARE_NAMES = "parse_log_sympy"  # names test functions without their files; pytest can run them
UNITTEST_NAMES = "parse_log_django"  # names tests as unittest's runner prints them
OWN = "pytest"  # pytest's own ids, without a parser
OWN_UNITTEST = "unittest"  # the ids of unittest's trusted session: file::Class::test
Parser = Callable[[str, Any], dict[str, str]]


def find_parser(name: str, edition: Edition = Edition.V5) -> Parser:
    """Return R2E-Gym's parser, or one of the `swebench` package by name.

    Raises:
        MissingExtra: the package is not installed.
        GraderError: there is no such parser, or not in this edition.
    """
    if name == r2e.PARSER:
        return lambda log, _: r2e.parse_log(log)
    try:
        from swebench.harness.log_parsers import PARSER_REGISTRY
    except ImportError as error:
        raise MissingExtra(
            "reading logs needs the swebench package: pip install 'hone-rl[swebench]'"
        ) from error
    if name not in PARSER_REGISTRY:
        raise GraderError(
            f"there is no log parser {name!r}; swebench has {', '.join(sorted(PARSER_REGISTRY))}"
        )
    found = PARSER_REGISTRY[name]
    if edition is Edition.V5:
        return found
    if not found.__module__.endswith(".python"):
        raise GraderError(f"edition 4 is for Python repositories, and {name} is not: use edition 5")
    return edition4.PARSERS.get(found.__name__, found)


_PYTEST = ("parse_log_pytest", "parse_log_pytest_options", "parse_log_pytest_v2", "parse_log_seaborn",
           "parse_log_matplotlib")  # fmt: skip
# The order of pytest's summary: when a parser merges two tests, the worse status counts.
_PASSED = ("PASSED", "XFAIL", "SKIPPED")
_ORDER = ("PASSED", "SKIPPED", "XFAIL", "ERROR", "FAILED")


def reads_pytest(parser: str) -> bool:
    """Return whether a parser derives its test ids from pytest's."""
    return parser == OWN or find_parser(parser) in map(find_parser, _PYTEST)


def rename(statuses: Statuses, parser: str, **spec: str) -> Statuses:
    """Return statuses by the names that a parser of the harness derives from pytest's ids.

    The parser reads a summary of them: some cut ids at a space, others remove paths from parameters.
    """
    if parser == OWN:
        return statuses
    lines = [f"{word} {test}" for word in _ORDER for test, status in statuses.items() if status == word]
    return find_parser(parser)("\n".join(lines), SimpleNamespace(**spec))


def describe(task: Task) -> dict[str, str]:
    """Return the facts about a task that some repositories' parsers use."""
    row = task.metadata.get("row", {})
    version = str(row.get("version", "")) if isinstance(row, dict) else ""
    return {"repo": task.environment.repo, "instance_id": task.id, "version": version}


def read_log(
    text: str,
    parser: Parser,
    *,
    edition: Edition = Edition.V5,
    strict: bool = False,
    **spec: str,
) -> Statuses:
    """Return the statuses in a log. Raises LogRefused for a log of an incomplete run.

    Args:
        text: the complete `test_output.txt`.
        strict: also refuse a log with repeated markers, which may be forged; the harness uses the first.
        spec: `repo`, `version` and `instance_id`, which parsers of some repositories use; see `describe`.
    """
    for marker, reason in _BROKEN.items():
        if marker in text:
            raise LogRefused(reason)
    if START not in text or END not in text:
        raise LogRefused("the test output lacks its start or end marker")
    if strict and (text.count(START) > 1 or text.count(END) > 1):
        raise LogRefused("the markers of the test output appear more than once")
    about, inside = SimpleNamespace(**spec), text.split(START)[1].split(END)[0]
    statuses = parser(inside, about)
    if strict:
        statuses = _worst(inside, parser, about, statuses)
    if not statuses:  # some runners write around the markers
        statuses = parser(text, about)
    if edition is Edition.V4:
        return statuses
    if not statuses and not _shows_that_tests_ran(text):
        raise LogRefused("the log names no test, and nothing shows that any ran")
    code = re.search(rf"{re.escape(EXIT_CODE)}:\s*(-?\d+)", text)
    any_failed = any(status in ("FAILED", "ERROR") for status in statuses.values())
    if statuses and not any_failed and code is not None and int(code[1]) != 0:
        raise LogRefused(f"the tests ended with exit code {code[1]}, but the log names no failing test")
    return statuses


def _worst(text: str, parser: Parser, about: SimpleNamespace, statuses: Statuses) -> Statuses:
    """Return the worst status of each test: a failed test cannot print later that it passed."""
    worst = dict(statuses)
    for line in text.splitlines():
        for test, status in parser(line, about).items():
            if test in worst and worst[test] in _PASSED and status in ("FAILED", "ERROR"):
                worst[test] = status
    return worst


def _shows_that_tests_ran(text: str) -> bool:
    """Return whether the log holds a runner's last line; some runners list failing tests only."""
    from swebench.harness.grading import SUITE_RAN

    return SUITE_RAN.search(text) is not None
