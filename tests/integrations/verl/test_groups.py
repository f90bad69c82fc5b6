"""Groups of verl's agent loop: each rollout ends with its group."""

from __future__ import annotations

import asyncio

import pytest

from hone.integrations.verl.groups import Groups
from hone.outcomes import Outcome
from hone.types import Trajectory
from tests.integrations.rollouts.examples import trajectory


async def end(event: asyncio.Event, outcome: Outcome) -> Trajectory:
    await event.wait()
    return trajectory(outcome=outcome)


async def fail(event: asyncio.Event) -> Trajectory:
    await event.wait()
    raise RuntimeError("injected")


def test_rollout_ends_with_its_group_and_faults_do_not_count() -> None:
    async def run() -> list[int]:
        groups, first, last = Groups(), asyncio.Event(), asyncio.Event()
        rollouts = [
            end(first, Outcome.RESOLVED),
            end(last, Outcome.ENGINE_ERROR),
            end(last, Outcome.NO_PATCH),
        ]
        jobs = [asyncio.create_task(groups.run("a", rollout)) for rollout in rollouts]
        other = asyncio.create_task(groups.run("b", end(first, Outcome.RESOLVED)))
        asyncio.get_running_loop().call_soon(first.set)  # once all have started
        assert (await other)[1] == 1  # another group does not hold it up
        assert not jobs[0].done()
        last.set()
        return [rewarded for _, rewarded in await asyncio.gather(*jobs)]

    assert asyncio.run(run()) == [2, 2, 2]


def test_rollout_that_raises_leaves_the_others_of_its_group() -> None:
    async def run() -> int:
        groups, first, last = Groups(), asyncio.Event(), asyncio.Event()
        failing = asyncio.create_task(groups.run("a", fail(first)))
        ending = asyncio.create_task(groups.run("a", end(last, Outcome.RESOLVED)))
        asyncio.get_running_loop().call_soon(first.set)  # once all have started
        with pytest.raises(RuntimeError, match="injected"):
            await failing
        last.set()
        return (await ending)[1]

    assert asyncio.run(run()) == 1


def test_group_that_has_ended_is_not_continued() -> None:
    async def run() -> list[int]:
        groups, now = Groups(), asyncio.Event()
        now.set()
        return [(await groups.run("a", end(now, Outcome.RESOLVED)))[1] for _ in range(2)]

    assert asyncio.run(run()) == [1, 1]
