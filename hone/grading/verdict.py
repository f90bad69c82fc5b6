"""From a test run to a verdict: pure functions."""

from __future__ import annotations

from collections.abc import Mapping

from hone.grading.errors import GraderError
from hone.grading.rules import COLLECTED, Edition, Report, Resolution, Rule, count, find
from hone.grading.run import TestRun
from hone.types import Checks, TestStatus, Verdict

# As the parsers of the SWE-bench harness write them; no log holds a missing test.
WORDS = {
    TestStatus.PASSED: "PASSED",
    TestStatus.FAILED: "FAILED",
    TestStatus.ERROR: "ERROR",
    TestStatus.SKIPPED: "SKIPPED",
    TestStatus.XFAILED: "XFAIL",
}
STATUS_OF_WORD = {word: status for status, word in WORDS.items()}


def words_of(statuses: Mapping[str, TestStatus]) -> dict[str, str]:
    """Return the statuses as the harness's parsers write them, without missing tests."""
    return {test: WORDS[status] for test, status in statuses.items() if status in WORDS}


def statuses_of(words: Mapping[str, str | None]) -> dict[str, TestStatus]:
    """Return the statuses of a parser's words, without unknown words."""
    return {test: STATUS_OF_WORD[word] for test, word in words.items() if word in STATUS_OF_WORD}


def count_tests(checks: Checks, statuses: Mapping[str, TestStatus], rule: Rule | None = None) -> Report:
    """Return which tests of the task count as success, by the SWE-bench harness's rule (edition 5)."""
    if rule is None:
        rule = Rule(checks.rule) if checks.rule in set(Rule) else Rule.PASS_AND_FAIL
    return count(words_of(statuses), checks.fail_to_pass, checks.pass_to_pass, rule=rule, edition=Edition.V5)


def make_verdict(
    checks: Checks, run: TestRun, *, applied: bool = True, rule: Rule = Rule.PASS_AND_FAIL
) -> Verdict:
    """Return resolved when every named test counts as success in a finished, untampered run.

    A test that is absent from `run.statuses` is missing and fails. With the rule "collected" the score is the
    passing share of all collected tests, and all must pass. A tampered run scores 0.

    Raises GraderError for checks without fail-to-pass tests.
    """
    if not checks.fail_to_pass:
        raise GraderError("a task without fail-to-pass tests cannot be graded")
    if checks.rule == COLLECTED:
        tests = dict(run.statuses)
        for test in checks.fail_to_pass:
            if test not in tests and not any(name.startswith(f"{test}[") for name in run.statuses):
                tests[test] = TestStatus.MISSING
        score = sum(status is TestStatus.PASSED for status in tests.values()) / len(tests)
        passed = score == 1
    else:
        report, words = count_tests(checks, run.statuses, rule), words_of(run.statuses)
        tests = {
            test: STATUS_OF_WORD.get(find(test, words) or "", TestStatus.MISSING)
            for test in checks.named_tests
        }
        passed, score = report.resolution is Resolution.FULL, report.fail_to_pass.fraction
    return Verdict(
        resolved=run.finished and run.tampered is None and applied and passed,
        tests=tests,
        score=0.0 if run.tampered is not None else score,
        tampered=run.tampered,
        log=run.log,
        applied=applied,
        seconds=run.seconds,
        memory_mib=run.memory_mib,
    )


def failed(checks: Checks, reason: str, *, applied: bool = False) -> Verdict:
    """Return the verdict of a patch that keeps every test from running."""
    return make_verdict(checks, TestRun(statuses={}, finished=False, log=reason), applied=applied)
