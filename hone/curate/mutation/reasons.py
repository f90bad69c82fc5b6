"""Reasons why a candidate does not become a task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hone.grading.run import TestRun
from hone.types import TestStatus

_FAILED = (TestStatus.FAILED, TestStatus.ERROR)
_FEW = 3  # this many tests may fail, whatever their share of the run


class Reason(StrEnum):
    """Reasons why a candidate does not become a task."""

    REPEATED = "equal to another bug, or does not compile"
    FUNCTION_FULL = "its function has enough tasks"
    UNDETECTED = "no test fails"
    DID_NOT_END = "the tests do not finish, or end their process"
    NOT_COLLECTED = "tests can no longer be collected"
    TOO_BROKEN = "more than half of the tests fail"
    PARTLY_HIDDEN = "one of its changes hides another"
    ALIKE = "too similar to another task"
    NO_STATEMENT = "no failing test makes an example"
    LEAKS = "its statement would reveal the fix"
    NOT_ADMITTED = "validation refuses the task"
    SURPLUS = "more tasks than requested"
    NO_VERDICT = "its tests could not be run"


def classify_run(expected: Sequence[str], run: TestRun) -> tuple[Reason | None, list[str]]:
    """Return the reason to reject a bug or None, and the tests that it makes fail.

    Args:
        expected: the tests of the run that pass without the bug.
    """
    if not run.finished and not run.statuses:
        return Reason.DID_NOT_END, []
    missing = [test for test in expected if run.statuses.get(test, TestStatus.MISSING) is TestStatus.MISSING]
    if not run.finished:
        return Reason.DID_NOT_END, []
    if missing:
        return Reason.NOT_COLLECTED, []
    failing = [test for test in expected if run.statuses[test] in _FAILED]
    if not failing:
        return Reason.UNDETECTED, []
    if len(failing) > max(_FEW, len(expected) / 2):
        return Reason.TOO_BROKEN, []
    return None, failing
