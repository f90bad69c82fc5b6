"""From what a test run told to a verdict: pure functions."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hone.grading.errors import GraderError
from hone.grading.inside.hone_tally import HELLO, LETTERS, UNUSABLE
from hone.grading.logs import OWN, reads_pytest, rename
from hone.grading.rules import COLLECTED, Edition, Resolution, Rule, count, find
from hone.types import Checks, TestStatus, Verdict

_STATUS = {letter: TestStatus(status) for status, letter in LETTERS.items()}
# As the parsers of the SWE-bench harness write them; a test that is missing is in no log.
WORDS = {
    TestStatus.PASSED: "PASSED",
    TestStatus.FAILED: "FAILED",
    TestStatus.ERROR: "ERROR",
    TestStatus.SKIPPED: "SKIPPED",
    TestStatus.XFAILED: "XFAIL",
}
STATUS_OF_WORD = {word: status for status, word in WORDS.items()}


def make_verdict(
    checks: Checks,
    statuses: Mapping[str, TestStatus],
    *,
    finished: bool = True,
    tampered: str | None = None,
    log: str = "",
    applied: bool = True,
    seconds: float = 0.0,
    memory_mib: float = 0.0,
    rule: Rule = Rule.PASS_AND_FAIL,
) -> Verdict:
    """Resolved when every expected test counts as success in a run that finished and was not tampered with.

    What counts is the SWE-bench harness's rule (edition 5). A test that is absent from `statuses` is missing
    and fails. With the rule "collected" the score is what passed of all in `statuses`, and all must. A
    tampered run scores 0.

    Raises GraderError for checks without fail-to-pass tests.
    """
    if not checks.fail_to_pass:
        raise GraderError("a task without fail-to-pass tests cannot be graded")
    if checks.rule == COLLECTED:
        tests, passed, score = _count_collected(checks, statuses)
    else:
        words = {test: WORDS[status] for test, status in statuses.items() if status in WORDS}
        report = count(words, checks.fail_to_pass, checks.pass_to_pass, rule=rule, edition=Edition.V5)
        expected = (*checks.fail_to_pass, *checks.pass_to_pass)
        tests = {test: STATUS_OF_WORD.get(find(test, words) or "", TestStatus.MISSING) for test in expected}
        passed, score = report.resolution is Resolution.FULL, report.fail_to_pass.fraction
    return Verdict(
        resolved=finished and tampered is None and applied and passed,
        tests=tests,
        score=0.0 if tampered is not None else score,
        tampered=tampered,
        log=log,
        applied=applied,
        seconds=seconds,
        memory_mib=memory_mib,
    )


def _count_collected(
    checks: Checks, statuses: Mapping[str, TestStatus]
) -> tuple[dict[str, TestStatus], bool, float]:
    """Tests, whether all pass and none of those named vanished, and what passed of them."""
    tests = dict(statuses)
    for test in checks.fail_to_pass:
        if test not in tests and not any(name.startswith(f"{test}[") for name in statuses):
            tests[test] = TestStatus.MISSING
    passed = sum(status is TestStatus.PASSED for status in tests.values())
    return tests, passed == len(tests), passed / len(tests)


def failed(checks: Checks, reason: str, *, applied: bool = False) -> Verdict:
    """The verdict where no test ran, and the patch is the reason."""
    return make_verdict(checks, {}, finished=False, log=reason, applied=applied)


def read_frame(output: bytes, nonce: str, ended: str) -> dict[str, Any] | None:
    """The runner's report in its standard output.

    Without the runner's hello there is none: GraderError, with what was said instead. With a hello and no
    report framed by `nonce`, code under test ended the runner: None.
    """
    if output.startswith(UNUSABLE):
        said = output.removeprefix(UNUSABLE).decode("utf-8", "replace").strip()
        raise GraderError(f"the test runner cannot run in this environment: {said}")
    if not output.startswith(HELLO):
        raise GraderError(
            f"the test runner did not start ({ended}): {output[:200].decode('utf-8', 'replace')!r}"
        )
    frame = nonce.encode() + b" "
    reports = [line for line in output.split(b"\n") if line.startswith(frame)]
    return json.loads(reports[0][len(frame) :]) if len(reports) == 1 else None


def statuses_of(report: Mapping[str, Any], expected: Sequence[str] | None) -> dict[str, TestStatus]:
    """Test id -> status; of `expected`, or of all that were collected."""
    told = report["statuses"]
    pairs = told.items() if expected is None else zip(expected, told, strict=True)
    return {test: _STATUS[letter] for test, letter in pairs}


def log_of(report: Mapping[str, Any]) -> str:
    """The end of what the tests printed, and how they ended where that was not as it should be."""
    if report["timed_out"]:
        return f"{report['log']}\nthe tests were stopped after {report['seconds']:.0f} s"
    if not report["finished"]:
        return f"{report['log']}\nthe test session did not run to its end (exit code {report['exit_code']})"
    return report["log"]


def read_report(output: bytes, nonce: str, checks: Checks, *, ended: str, repo: str = "") -> Verdict:
    """The verdict in the runner's standard output; `ended` says how its command ended, for the log.

    Raises GraderError where the runner did not start.
    """
    report = read_frame(output, nonce, ended)
    if report is None:
        return failed(checks, f"the test run ended without a report ({ended})", applied=True)
    statuses = statuses_of(report, expected_of(checks))
    if checks.parser != OWN and reads_pytest(checks.parser):
        words = {test: WORDS[status] for test, status in statuses.items() if status in WORDS}
        renamed = rename(words, checks.parser, repo=repo)
        statuses = {test: STATUS_OF_WORD[word] for test, word in renamed.items() if word in STATUS_OF_WORD}
    return make_verdict(
        checks,
        statuses,
        finished=report["finished"],
        tampered=report["tampered"],
        log=log_of(report),
        seconds=report["seconds"],
        memory_mib=report["memory_kib"] / 1024,
    )


def expected_of(checks: Checks) -> list[str] | None:
    """The tests that a run has to tell of; None: all that it collects, which have other names there."""
    whole = checks.rule == COLLECTED or (checks.parser != OWN and reads_pytest(checks.parser))
    return None if whole else [*checks.fail_to_pass, *checks.pass_to_pass]
