"""From a test run to a verdict, and verdicts in the SWE-bench harness's report format: pure functions."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hone.grading.errors import GraderError
from hone.grading.rules import (
    COLLECTED,
    Edition,
    Report,
    Resolution,
    Rule,
    count,
    describe,
    find,
    find_parser,
    read_log,
)
from hone.grading.run import TestRun
from hone.outcomes import Outcome
from hone.tasks.errors import first_few
from hone.types import Checks, Task, TestStatus, Verdict

# As the parsers of the SWE-bench harness write them; no log holds a missing test.
WORDS = {
    TestStatus.PASSED: "PASSED",
    TestStatus.FAILED: "FAILED",
    TestStatus.ERROR: "ERROR",
    TestStatus.SKIPPED: "SKIPPED",
    TestStatus.XFAILED: "XFAIL",
}
EXCUSED = (TestStatus.SKIPPED, TestStatus.XFAILED)
STATUS_OF_WORD = {word: status for status, word in WORDS.items()}


def words_of(statuses: Mapping[str, TestStatus]) -> dict[str, str]:
    """Return the statuses as the harness's parsers write them, without missing tests."""
    return {test: WORDS[status] for test, status in statuses.items() if status in WORDS}


def statuses_of(words: Mapping[str, str | None]) -> dict[str, TestStatus]:
    """Return the statuses of a parser's words, without unknown words."""
    return {test: STATUS_OF_WORD[word] for test, word in words.items() if word in STATUS_OF_WORD}


def count_tests(checks: Checks, statuses: Mapping[str, TestStatus], rule: Rule | None = None) -> Report:
    """Return which tests of the task count as success, by the SWE-bench harness's rule (edition 5).

    Where the task knows its reference run, a test that is skipped or xfailed only here counts as failed.
    """
    if rule is None:
        rule = Rule(checks.rule) if checks.rule in set(Rule) else Rule.PASS_AND_FAIL
    words = words_of(statuses)
    words |= dict.fromkeys(unexcused(checks, words), WORDS[TestStatus.FAILED])
    return count(words, checks.fail_to_pass, checks.pass_to_pass, rule=rule, edition=Edition.V5)


def unexcused(checks: Checks, words: Mapping[str, str]) -> list[str]:
    """Return the named tests that are skipped or xfailed, but not with the reference fix."""
    if checks.excused is None:
        return []
    excused, ended = set(checks.excused), {WORDS[status] for status in EXCUSED}
    return [test for test in checks.named_tests if test not in excused and find(test, words) in ended]


def make_verdict(
    checks: Checks, run: TestRun, *, applied: bool = True, rule: Rule = Rule.PASS_AND_FAIL
) -> Verdict:
    """Return resolved when every named test counts as success in a finished, untampered run.

    A test that is absent from `run.statuses` is missing and fails. With the rule "collected" the score is the
    passing share of all collected tests, and all must pass. A tampered run scores 0. The log's last line
    names the tests that fail because of `checks.excused`.

    Raises GraderError for checks without fail-to-pass tests.
    """
    if not checks.fail_to_pass:
        raise GraderError("a task without fail-to-pass tests cannot be graded")
    log = run.log
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
        if failing := unexcused(checks, words):
            log = f"{log}\nskipped or xfailed, but not with the reference fix: {first_few(failing)}".lstrip()
    return Verdict(
        resolved=run.finished and run.tampered is None and applied and passed,
        tests=tests,
        score=0.0 if run.tampered is not None else score,
        tampered=run.tampered,
        log=log,
        applied=applied,
        controls=run.controls,
        seconds=run.seconds,
        memory_mib=run.memory_mib,
    )


def failed(checks: Checks, reason: str, *, applied: bool = False) -> Verdict:
    """Return the verdict of a patch that keeps every test from running."""
    return make_verdict(checks, TestRun(statuses={}, finished=False, log=reason), applied=applied)


SCHEMA_VERSION = 2  # of the harness's summary


def outcome_of(verdict: Verdict) -> Outcome:
    """Return the outcome of a graded patch."""
    if verdict.tampered is not None:
        return Outcome.TAMPERED
    return Outcome.RESOLVED if verdict.resolved else Outcome.UNRESOLVED


def graded_entry(task: Task, verdict: Verdict) -> dict[str, Any]:
    """Return the entry of one instance in its `report.json`."""
    return {
        **_entry(applied=verdict.applied, resolved=verdict.resolved),
        "tests_status": _tests_status(count_tests(task.checks, verdict.tests)),
        "outcome": str(outcome_of(verdict)),
        "evidence": verdict.tampered,
        "score": verdict.score,
        "controls": dataclasses.asdict(verdict.controls),
        "seconds": verdict.seconds,
        "memory_mib": verdict.memory_mib,
    }


def ungraded_entry(outcome: Outcome, reason: str | None = None) -> dict[str, Any]:
    """Return the entry of an instance without a patch (NO_PATCH) or without a verdict."""
    failed = outcome is Outcome.GRADER_ERROR
    return {
        **_entry(exists=outcome is not Outcome.NO_PATCH, infra_failure=failed),
        **({"infra_failure_reason": reason} if failed else {}),
        "outcome": str(outcome),
        "evidence": reason,
        "score": 0.0,
    }


def _entry(
    *, exists: bool = True, applied: bool = False, resolved: bool = False, infra_failure: bool = False
) -> dict[str, Any]:
    return {
        "patch_is_None": not exists,
        "patch_exists": exists,
        "patch_successfully_applied": applied,
        "resolved": resolved,
        "infra_failure": infra_failure,
    }


def _tests_status(report: Report) -> dict[str, dict[str, list[str]]]:
    lists = {"FAIL_TO_PASS": report.fail_to_pass, "PASS_TO_PASS": report.pass_to_pass}
    status = {
        name: {"success": list(counted.success), "failure": list(counted.failure)}
        for name, counted in lists.items()
    }
    empty: dict[str, list[str]] = {"success": [], "failure": []}
    return {**status, "FAIL_TO_FAIL": empty, "PASS_TO_FAIL": empty}


def summarise(
    entries: Mapping[str, Mapping[str, Any]], tasks: Sequence[Task], submitted: Sequence[str]
) -> dict[str, Any]:
    """Return the harness's run report over all instances, with each one's outcome.

    Args:
        entries: id -> entry of its `report.json`.
        submitted: ids of the predictions, those without a task included.
    """

    def ids_with(*outcomes: Outcome) -> list[str]:
        return sorted(name for name, entry in entries.items() if entry["outcome"] in outcomes)

    errors, unresolved = (
        ids_with(Outcome.GRADER_ERROR),
        ids_with(Outcome.UNRESOLVED, Outcome.TAMPERED, Outcome.CRASHED),
    )
    resolved, known = ids_with(Outcome.RESOLVED), {task.id for task in tasks}
    ids = {
        "completed": sorted([*resolved, *unresolved]),
        "incomplete": sorted(known - set(entries)),
        "empty_patch": ids_with(Outcome.NO_PATCH),
        "submitted": sorted(submitted),
        "resolved": resolved,
        "unresolved": unresolved,
        "tampered": ids_with(Outcome.TAMPERED),
        "error": errors,
        "infra_failure": errors,
        "ambiguous_failure": [],
        "unknown": sorted(set(submitted) - known),
    }
    counts = {f"{name}_instances": len(named) for name, named in ids.items() if name != "incomplete"}
    return {
        "total_instances": len(tasks),
        **counts,
        **{f"{name}_ids": named for name, named in ids.items()},
        "failure_reasons": {name: entries[name]["evidence"] for name in errors},
        "schema_version": SCHEMA_VERSION,
        "instances": {name: dict(entry, tests_status=None) for name, entry in sorted(entries.items())},
    }


def grade_log(task: Task, text: str, edition: Edition = Edition.V5) -> Report:
    """Grade a stored test log. Raises LogRefused, and GraderError for an unknown parser or rule."""
    checks = task.checks
    if checks.rule not in set(Rule):
        known = ", ".join(Rule)
        raise GraderError(f"task {task.id}: there is no rule {checks.rule!r}; rules are {known}")
    parser = find_parser(checks.parser, edition)
    statuses = read_log(text, parser, edition=edition, strict=True, **describe(task))
    rule = Rule(checks.rule)
    return count(statuses, checks.fail_to_pass, checks.pass_to_pass, rule=rule, edition=edition)


def log_entry(report: Report | None) -> dict[str, Any]:
    """Return the entry of one instance in the harness's `report.json`; None is a refused log."""
    if report is None:
        return _entry()
    resolved = report.resolution is Resolution.FULL
    return {**_entry(applied=True, resolved=resolved), "tests_status": _tests_status(report)}
