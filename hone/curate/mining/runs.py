"""Runs of the changed tests without and with a fix."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass

from hone.curate.limits import run_limit_s
from hone.curate.mining.candidates import CommitRejected, Reason
from hone.curate.runner import last_line
from hone.grading.run import TestRun
from hone.types import TestStatus

_MIN_RUNS = 2  # a second run shows test ids that contain the time or a random number

Statuses = Mapping[str, TestStatus]
Run = Callable[[str, float], Awaitable[TestRun]]
"""Runs the changed tests after a source patch, for at most so many seconds, in a fresh sandbox."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The tests by their results without and with the fix."""

    fail_to_pass: tuple[str, ...]  # never pass before, always pass after
    pass_to_pass: tuple[str, ...]  # always pass
    flaky: tuple[str, ...]  # differ between the runs before, or between the runs after


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    compared: RunComparison
    limit_s: float  # of each run after the first, and of the task


def compare(before: Sequence[Statuses], after: Sequence[Statuses]) -> RunComparison:
    """Sort the tests by their results, in the order of the first run with the fix."""
    fail_to_pass: list[str] = []
    pass_to_pass: list[str] = []
    flaky: list[str] = []
    for test in dict.fromkeys(test for run in (*after, *before) for test in run):
        then = {run.get(test, TestStatus.MISSING) for run in before}
        now = {run.get(test, TestStatus.MISSING) for run in after}
        if len(then) > 1 or len(now) > 1:
            flaky.append(test)
        if now == {TestStatus.PASSED}:
            if TestStatus.PASSED not in then:
                fail_to_pass.append(test)
            elif then == {TestStatus.PASSED}:
                pass_to_pass.append(test)
    return RunComparison(
        fail_to_pass=tuple(fail_to_pass), pass_to_pass=tuple(pass_to_pass), flaky=tuple(flaky)
    )


async def observe(run: Run, gold_patch: str, repeats: int, timeout_s: float) -> Observation:
    """Run the tests `repeats` times, at least twice, without and with the fix.

    Args:
        timeout_s: of the first run with the fix, which decides the limit of the others.

    Raises CommitRejected as soon as no task can be made of them, GraderError when no sandbox starts.
    """
    after = [await run(gold_patch, timeout_s)]
    _check_ran(after[0], timeout_s)
    if not any(status is TestStatus.PASSED for status in after[0].statuses.values()):
        raise CommitRejected(Reason.GOLD_FAILS, last_line(after[0].log))
    limit_s = run_limit_s(after[0].seconds)
    before = [await run("", limit_s)]
    if not before[0].finished and before[0].seconds >= limit_s:
        raise CommitRejected(Reason.TOO_SLOW, f"without the fix they take more than {limit_s:g} s")
    _check_fix_helps(before[0].statuses, after[0].statuses)
    for _ in range(max(repeats, _MIN_RUNS) - 1):
        after.append(await run(gold_patch, limit_s))
        before.append(await run("", limit_s))
    compared = compare([each.statuses for each in before], [each.statuses for each in after])
    if not compared.fail_to_pass:
        raise CommitRejected(Reason.UNSTABLE, ", ".join(compared.flaky[:3]))
    return Observation(compared=compared, limit_s=limit_s)


def _check_ran(run: TestRun, timeout_s: float) -> None:
    if not run.finished and run.seconds >= timeout_s:
        raise CommitRejected(Reason.TOO_SLOW, f"more than {timeout_s:g} s")
    if not run.finished or not run.statuses:
        raise CommitRejected(Reason.DOES_NOT_RUN, last_line(run.log))


def _check_fix_helps(before: Statuses, after: Statuses) -> None:
    compared = compare([before], [after])
    if compared.fail_to_pass:
        return
    failing = [test for test, status in after.items() if status in (TestStatus.FAILED, TestStatus.ERROR)]
    if failing:
        raise CommitRejected(Reason.GOLD_FAILS, failing[0])
    raise CommitRejected(Reason.NO_FAIL_TO_PASS)
