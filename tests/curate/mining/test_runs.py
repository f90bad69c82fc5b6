import asyncio

import pytest

from hone.curate.mining.candidates import CommitRejected, Reason
from hone.curate.mining.runs import compare, observe
from hone.grading.run import TestRun
from hone.types import TestStatus

GOLD = "gold"


def statuses(**tests: str):
    return {name: TestStatus(status) for name, status in tests.items()}


def test_tests_are_sorted_by_all_runs():
    before = [statuses(a="failed", b="passed", c="passed", d="passed", f="skipped")] * 2
    after = [
        statuses(a="passed", b="passed", c="failed", d="passed", e="passed", f="passed"),
        statuses(a="passed", b="passed", c="failed", d="failed", e="passed", f="passed"),
    ]
    found = compare(before, after)
    assert found.fail_to_pass == ("a", "e", "f")
    assert found.pass_to_pass == ("b",)
    assert found.flaky == ("d",)


def test_test_that_passes_once_before_the_fix_is_flaky():
    found = compare([statuses(a="failed"), statuses(a="passed")], [statuses(a="passed")] * 2)
    assert (found.fail_to_pass, found.pass_to_pass, found.flaky) == ((), (), ("a",))


def watch(before: list[TestRun], after: list[TestRun], repeats: int = 2, limits: list[float] | None = None):
    limits = [] if limits is None else limits

    async def run(patch: str, timeout_s: float) -> TestRun:
        limits.append(timeout_s)
        return (after if patch == GOLD else before).pop(0)

    return asyncio.run(observe(run, GOLD, repeats, 10.0))


def ran(seconds: float = 1.0, *, finished: bool = True, log: str = "", **tests: str) -> TestRun:
    return TestRun(statuses=statuses(**tests), finished=finished, log=log, seconds=seconds)


@pytest.mark.parametrize(("seconds", "limit_s"), [(0.1, 30.0), (8.0, 48.0)])
def test_limit_of_runs_follows_the_time_of_the_fix(seconds, limit_s):
    limits: list[float] = []
    seen = watch(
        [ran(a="failed"), ran(a="failed")], [ran(seconds, a="passed"), ran(9.0, a="passed")], limits=limits
    )
    assert (seen.compared.fail_to_pass, seen.limit_s) == (("a",), limit_s)
    assert limits == [10.0, limit_s, limit_s, limit_s]


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ([], [ran(finished=False, log="E   ImportError: no module")], Reason.DOES_NOT_RUN),
        ([], [ran(10.0, finished=False)], Reason.TOO_SLOW),
        ([], [ran(a="error")], Reason.GOLD_FAILS),
        ([ran(30.0, finished=False)], [ran(a="passed")], Reason.TOO_SLOW),
        ([ran(a="failed", b="passed")], [ran(a="failed", b="passed")], Reason.GOLD_FAILS),
        ([ran(a="passed")], [ran(a="passed")], Reason.NO_FAIL_TO_PASS),
        ([ran(a="failed"), ran(a="passed")], [ran(a="passed"), ran(a="passed")], Reason.UNSTABLE),
    ],
)
def test_commit_whose_tests_prove_nothing_is_rejected(before, after, reason):
    with pytest.raises(CommitRejected) as caught:
        watch(before, after)
    assert caught.value.reason is reason


def test_tests_run_at_least_twice():
    seen = watch(
        [ran(a="failed")] * 2, [ran(a="passed", t1="passed"), ran(a="passed", t2="passed")], repeats=1
    )
    assert (seen.compared.fail_to_pass, seen.compared.flaky) == (("a",), ("t1", "t2"))


def test_tests_may_be_uncollectable_before_the_fix():
    seen = watch([ran(finished=False)] * 2, [ran(a="passed")] * 2)
    assert seen.compared.fail_to_pass == ("a",)
