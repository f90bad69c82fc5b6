"""Graded rollouts with the engine of a peer, in real sandboxes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from hone.agents.settings import ScriptedAgentSettings
from hone.config import ConfigError, RunSettings
from hone.grading.settings import ProgressSettings
from hone.integrations.rollouts.branches import branches
from hone.integrations.rollouts.service import RolloutService, open_rollout_service, share_bounds
from hone.outcomes import Outcome
from hone.policy.settings import SamplingSettings
from hone.rollout.store import Store
from hone.types import Task, Trajectory
from tests.integrations.rollouts.examples import GIVE_UP, SayingPeer, fix, make_recipe
from tests.waiting import wait_until_async

pytestmark = pytest.mark.sandbox


def serve(
    settings: RunSettings, peer: SayingPeer, work: Callable[[RolloutService], Awaitable[Any]], **options: Any
) -> Any:
    async def run() -> Any:
        async with open_rollout_service(settings, peer.generate, **options) as service:
            return await work(service)

    return asyncio.run(run())


def first_task(service: RolloutService) -> Task:
    return service.splits.train[0]


async def one(service: RolloutService) -> Trajectory:
    return await service.rollout(first_task(service), group_id="7", index=1, seed=5)


def gold(settings: RunSettings) -> str:
    from hone.tasks.sources import load_splits

    return fix(load_splits(settings.tasks).train[0])


def test_rollout_of_a_peers_engine_is_graded_and_stored(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path)
    peer = SayingPeer(settings, "cat *.py", gold(settings))

    trajectory: Trajectory = serve(settings, peer, one)

    assert (trajectory.outcome, trajectory.reward) == (Outcome.RESOLVED, 1.0)
    assert (trajectory.group_id, trajectory.seed, len(trajectory.turns)) == ("7", 5, 2)
    (row,) = branches(trajectory)
    assert row.prompt_ids.tolist() == peer.asked[0][0]
    assert set(row.logprobs[row.response_mask == 1].tolist()) == {-0.5}
    assert {session for _, _, session in peer.asked} == {trajectory.rollout_id}
    store = Store(settings.run_dir / "rollouts")
    (name,) = store.names()
    assert store.load(name).verdict == trajectory.verdict


def test_engine_fault_is_retried_and_gives_no_reward(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path, rollout={"attempts": 2, "retry_delay_s": 0.0})
    peer = SayingPeer(settings, GIVE_UP)
    peer.fault = ConnectionError("gone")

    trajectory: Trajectory = serve(settings, peer, one)

    assert (trajectory.outcome, trajectory.reward) == (Outcome.ENGINE_ERROR, None)
    assert trajectory.error == "the engine failed: ConnectionError: gone"
    assert len(peer.asked) == 2


def test_task_without_a_workspace_is_an_infrastructure_fault(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path, rollout={"attempts": 1})
    settings.run_dir.mkdir()
    (settings.run_dir / "workspaces").write_text("not a directory")

    trajectory: Trajectory = serve(settings, SayingPeer(settings, GIVE_UP), one)

    assert (trajectory.outcome, trajectory.reward) == (Outcome.SANDBOX_ERROR, None)


def test_no_more_rollouts_run_than_the_recipe_allows(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path, rollout={"concurrent_episodes": 1})
    peer = SayingPeer(settings, GIVE_UP)

    async def two(service: RolloutService) -> int:
        peer.waits = asyncio.Event()
        task = first_task(service)
        both = [service.rollout(task, group_id="7", index=i, seed=i) for i in range(2)]
        running = [asyncio.create_task(each) for each in both]
        await peer.asked_once.wait()
        first = len(peer.asked)
        peer.waits.set()
        await asyncio.gather(*running)
        return first

    assert serve(settings, peer, two) == 1
    assert len(peer.asked) == 2


def test_cancelled_rollout_leaves_no_process(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path)
    peer = SayingPeer(settings, "sleep 86397")

    async def cancel(service: RolloutService) -> None:
        running = asyncio.create_task(one(service))
        await wait_until_async(sleeping, "the agent never ran its command")
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        assert not sleeping()

    serve(settings, peer, cancel)


def sleeping() -> bool:
    """Whether a process below this one runs the command of the test."""
    for child in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.NoSuchProcess):
            if child.cmdline() == ["sleep", "86397"]:
                return True
    return False


def test_sampling_of_a_validation_replaces_the_recipes(tmp_path: Path) -> None:
    settings = make_recipe(tmp_path)
    peer = SayingPeer(settings, GIVE_UP)

    async def validate(service: RolloutService) -> Trajectory:
        greedy = SamplingSettings(temperature=0.0, max_tokens=9)
        return await service.rollout(
            first_task(service), group_id="v", index=0, seed=1, sampling=greedy, evaluation=True
        )

    trajectory: Trajectory = serve(settings, peer, validate)

    assert (peer.asked[0][1].temperature, peer.asked[0][1].max_tokens) == (0.0, 9)
    assert trajectory.sampler.sampling["temperature"] == 0.0


def test_processes_share_the_bounds_of_the_recipe(tmp_path: Path) -> None:
    bounds = {"concurrent_episodes": 10}
    settings = make_recipe(tmp_path, rollout=bounds, sandbox={"max_concurrent_starts": 4})

    shared = share_bounds(settings, 4)

    assert shared.rollout.concurrent_episodes == 2
    assert (shared.sandbox.max_concurrent_starts, shared.grading.concurrency) == (1, 1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"agent": ScriptedAgentSettings(kind="noop")}, 'agent.kind = "noop" asks no policy'),
        ({"progress": ProgressSettings(enabled=True)}, "progress.enabled scores single turns"),
        ({"sampling": SamplingSettings(top_p=0.9)}, "set sampling.top_p = 1"),
    ],
)
def test_recipe_that_gives_no_plain_rollouts_is_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    settings = make_recipe(tmp_path)
    peer = SayingPeer(settings, GIVE_UP)

    with pytest.raises(ConfigError, match=message):
        serve(settings.model_copy(update=changes), peer, one)
