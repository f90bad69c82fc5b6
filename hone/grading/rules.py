"""The pass rules of the SWE-bench harness, as pure functions.

Input: {test: status} as a log parser returns it, and the tests that a task names. `Edition` states how the
two editions in use differ. Source: the `swebench` package, versions 4.1 and 5.0.2.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

Statuses = Mapping[str, str]  # test id -> PASSED, FAILED, ERROR, SKIPPED or XFAIL, as the parsers write them

# Further rules of data sets; single tests count as in `Rule.PASS_AND_FAIL`.
COLLECTED = "collected"  # all collected tests must pass, and no named test may be missing
EXACT = "exact"  # the statuses of all tests equal the task's `metadata["expected"]`
_PASSING = frozenset({"PASSED", "XFAIL"})


class Edition(StrEnum):
    """Edition of the harness.

    V5 counts a skipped fail-to-pass test as failed and a skipped pass-to-pass test as kept, and matches ids
    that are cut off in their parameters by their beginning. V4 does not count skipped tests.
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
