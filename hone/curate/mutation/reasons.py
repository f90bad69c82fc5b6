"""Why a candidate is no task."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from hone.grading.run import TestRun
from hone.types import TestStatus

_FAILED = (TestStatus.FAILED, TestStatus.ERROR)
_FEW = 3  # so many tests may fail whatever share of the run they are


class Reason(StrEnum):
    """Why a candidate is no task."""

    REPEATED = "the same as another, or it does not compile"
    FUNCTION_FULL = "its function has had its share"
    UNNOTICED = "no test fails"
    DID_NOT_END = "the tests do not end, or end their process"
    NOT_COLLECTED = "tests can no longer be collected"
    TOO_BROKEN = "more than half of the tests fail"
    PARTLY_HIDDEN = "one of its changes hides another"
    ALIKE = "too much like one that was found"
    NO_STATEMENT = "no failing test can be told"
    LEAKS = "its statement would tell the fix"
    NOT_ADMITTED = "not admitted by validation"
    SURPLUS = "more than were asked for"
    NO_VERDICT = "its tests could not be run"


def weigh(expected: Sequence[str], run: TestRun) -> tuple[Reason | None, list[str]]:
    """Why a bug is none that a task can be made of, or the tests that it makes fail.

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
        return Reason.UNNOTICED, []
    if len(failing) > max(_FEW, len(expected) / 2):
        return Reason.TOO_BROKEN, []
    return None, failing
