"""Verdicts in the SWE-bench harness's report format, with the outcome and its evidence added."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.grading.errors import GraderError, LogRefused
from hone.grading.logs import describe, find_parser, read_log
from hone.grading.rules import Edition, Report, Resolution, Rule, count
from hone.grading.verdict import count_tests
from hone.outcomes import Outcome
from hone.types import Task, Verdict

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
        "seconds": verdict.seconds,
        "memory_mib": verdict.memory_mib,
    }


def ungraded_entry(outcome: Outcome, reason: str | None = None) -> dict[str, Any]:
    """Return the entry of an instance without a patch (NO_PATCH) or without a verdict (GRADER_ERROR)."""
    failed = outcome is Outcome.GRADER_ERROR
    return {
        **_entry(exists=failed, infra_failure=failed),
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

    errors, unresolved = ids_with(Outcome.GRADER_ERROR), ids_with(Outcome.UNRESOLVED, Outcome.TAMPERED)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class GradedLog:
    """Either a report, or why the log gives none."""

    report: Report | None
    refused: str = ""

    def entry(self) -> dict[str, Any]:
        """Return the entry of one instance in the harness's `report.json`."""
        if self.report is None:
            return _entry()
        resolved = self.report.resolution is Resolution.FULL
        return {
            **_entry(applied=True, resolved=resolved),
            "tests_status": _tests_status(self.report),
        }


def grade_log(task: Task, text: str, edition: Edition = Edition.V5) -> GradedLog:
    """Grade a stored test log. Raises GraderError for an unknown parser or rule."""
    checks = task.checks
    if checks.rule not in set(Rule):
        known = ", ".join(Rule)
        raise GraderError(f"task {task.id}: there is no rule {checks.rule!r}; rules are {known}")
    parser = find_parser(checks.parser)
    try:
        statuses = read_log(text, parser, edition=edition, strict=True, **describe(task))
    except LogRefused as refusal:
        return GradedLog(report=None, refused=str(refusal))
    report = count(
        statuses, checks.fail_to_pass, checks.pass_to_pass, rule=Rule(checks.rule), edition=edition
    )
    return GradedLog(report=report)
