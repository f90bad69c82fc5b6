"""Potentials of states and their measurement; tests/rollout has complete episodes."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from hone.environment import BrokenTree
from hone.grading.errors import GraderError
from hone.grading.progress import ProgressTracker, potential
from hone.grading.run import TestRun
from hone.grading.settings import ProgressSettings
from hone.grading.verdict import failed, make_verdict
from hone.sandbox import SandboxLost
from hone.types import ProgressScores, Task, TestStatus, Verdict
from tests.grading.example import make_task
from tests.grading.judging import turn

CHECKS = make_task().checks
ALL = dict.fromkeys((*CHECKS.fail_to_pass, *CHECKS.pass_to_pass), TestStatus.PASSED)


def verdict(**statuses: TestStatus) -> Verdict:
    """Everything passes but what is named, by the end of its id."""
    changed = {i: s for name, s in statuses.items() for i in ALL if i.endswith(f"::{name}")}
    assert len(changed) == len(statuses)
    return make_verdict(CHECKS, TestRun(statuses={**ALL, **changed}))


def test_potential_is_the_share_of_fixed_tests() -> None:
    assert potential(verdict(), CHECKS) == 1.0
    assert potential(verdict(test_add=TestStatus.FAILED), CHECKS) == pytest.approx(2 / 3)
    assert potential(verdict(test_add=TestStatus.FAILED, test_add_more=TestStatus.MISSING), CHECKS) == (
        pytest.approx(1 / 3)
    )


@pytest.mark.parametrize(
    "worthless",
    [
        verdict(test_double=TestStatus.FAILED),  # a test that passed before
        verdict(test_double=TestStatus.MISSING),
        verdict(test_double=TestStatus.FAILED, test_add=TestStatus.FAILED),
        dataclasses.replace(verdict(), tampered="wrote to the report", resolved=False),
        dataclasses.replace(verdict(), resolved=False),  # the run did not end as it should
        failed(CHECKS, "does not apply"),
        failed(CHECKS, "the tests hang", applied=True),
    ],
)
def test_unsubmittable_state_has_potential_zero(worthless: Verdict) -> None:
    assert potential(worthless, CHECKS) == 0.0


class Bench:
    """Patches that an agent's turns leave, and a grader that knows what they are worth."""

    def __init__(self, *patches: str | Exception) -> None:
        self._patches = iter(patches)
        self.graded: list[str] = []
        self.hold = asyncio.Event()
        self.hold.set()

    async def read(self) -> str:
        patch = next(self._patches)
        if isinstance(patch, Exception):
            raise patch
        return patch

    async def grade(self, task: Task, patch: str) -> Verdict:
        self.graded.append(patch)
        await self.hold.wait()
        if patch == "ungradable":
            raise GraderError("no pytest")
        score = {"": 0.0, "half": 0.5}.get(patch, 1.0)
        return Verdict(resolved=score == 1, tests=ALL, score=score)


def measure(bench: Bench, turns: int, *, without_command: int = -1, **settings: Any) -> ProgressScores:
    async def run() -> ProgressScores:
        async with asyncio.TaskGroup() as tasks:
            given = ProgressSettings(enabled=True, **settings)
            watch = ProgressTracker(make_task(), given, tasks, grade=bench.grade, read=bench.read)
            for i in range(turns):
                await watch.observe(turn(i, action=None if i == without_command else "x"))
            return await watch.settle()

    return asyncio.run(run())


def test_each_new_state_is_graded_once() -> None:
    bench = Bench("", "half", "half", "fixed", "half")
    measured = measure(bench, 6, without_command=1)
    assert measured.initial_score == 0.0
    assert [(s.step_index, s.changed, s.score) for s in measured.steps] == [
        (0, False, 0.0),
        (1, False, 0.0),  # no command, so nothing was read
        (2, True, 0.5),
        (3, False, 0.5),
        (4, True, 1.0),
        (5, True, 0.5),
    ]
    assert sorted(bench.graded) == ["", "fixed", "half"]


@pytest.mark.parametrize("error", [SandboxLost("gone"), BrokenTree("a fifo")])
def test_unreadable_state_fails_nothing(error: Exception) -> None:
    states = measure(Bench("half", error, "fixed"), 3).steps
    assert [(s.status, s.score) for s in states] == [("ok", 0.5), ("unreadable", None), ("ok", 1.0)]
    assert str(error) in str(states[1].error)


def test_missing_verdict_leaves_the_score_unknown() -> None:
    states = measure(Bench("half", "ungradable"), 2).steps
    assert [(s.status, s.score) for s in states] == [("ok", 0.5), ("no_verdict", None)]


def test_hanging_grader_is_cancelled() -> None:
    bench = Bench("half")
    bench.hold.clear()
    measured = measure(bench, 1, wait_s=0.01)
    (state,) = measured.steps
    assert (measured.initial_score, state.status, state.score) == (None, "no_verdict", None)
    assert "of the rollout's end" in str(state.error)


def test_cancellation_leaves_no_task() -> None:
    async def run() -> None:
        bench = Bench("half")
        bench.hold.clear()

        async def rollout() -> None:
            async with asyncio.TaskGroup() as tasks:
                settings = ProgressSettings(enabled=True)
                watch = ProgressTracker(make_task(), settings, tasks, grade=bench.grade, read=bench.read)
                await watch.observe(turn(0))
                seen.set()
                await watch.settle()

        seen = asyncio.Event()
        job = asyncio.create_task(rollout())
        await seen.wait()
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert asyncio.all_tasks() == {asyncio.current_task()}

    asyncio.run(run())


def test_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match=r"progress\.gamma has no effect while progress\.enabled is false"):
        ProgressSettings(gamma=0.5)
