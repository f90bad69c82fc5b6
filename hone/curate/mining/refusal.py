"""Reasons why a commit does not become a task."""

from __future__ import annotations

from enum import StrEnum


class Reason(StrEnum):
    """The closed list, in the order of the checks."""

    NO_SOURCE = "changes no Python source"
    NO_TESTS = "changes no tests"
    COMPILED = "changes compiled code"
    TOO_LARGE = "is too large"
    NOT_PYTHON = "contains source that this Python cannot parse"
    SAME_CODE = "changes only layout, comments or the version"
    NO_TEST_MODULE = "changes no test module"
    NO_ENVIRONMENT = "its dependencies cannot be installed"
    DOES_NOT_RUN = "its tests do not run"
    TOO_SLOW = "its tests take too long"
    GOLD_FAILS = "its tests also fail with the fix"
    NO_FAIL_TO_PASS = "no test fails before the fix and passes after it"  # noqa: S105 - no password
    UNSTABLE = "the tests that it fixes are flaky"
    PRIVATE_NAMES = "its tests use private names that only the fix introduces"
    NO_STATEMENT = "every possible statement reveals the fix"
    NOT_ADMITTED = "validation refuses the task"


class CommitRejected(Exception):
    """The commit does not become a task."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason, self.detail = reason, detail
