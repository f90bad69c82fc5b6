"""Simulated rollouts, for the pipeline that runs real ones.

    sandbox starts -> turns: reply of the engine, command in the sandbox -> grading in a sandbox -> Trajectory

The collector bounds how many rollouts hold a sandbox (`rollout.concurrent_episodes`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection
from pathlib import Path

import numpy as np

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.policy.engine import EngineError
from hone.rollout.attempts import Attempt
from hone.rollout.errors import StoreError
from hone.rollout.settings import RolloutSettings
from hone.rollout.store import Store
from hone.simulate.fleet import SimulatedFleet
from hone.simulate.workload import Draw, Workload
from hone.types import Node, Task, TokenTree, Trajectory
from hone.utils.busy import BusyMeter

WRITE_S = 0.05  # until a trajectory is stored, and again until its row is in the ledger


class SimulatedRollouts:
    """`hone.rollout.attempts.Rollouts` without a model; create it inside of the event loop."""

    def __init__(
        self,
        workload: Workload,
        fleet: SimulatedFleet,
        settings: RolloutSettings,
        version: Callable[[], int],
        store: Store | None = None,
    ) -> None:
        """`version`: of the weights in use. `store`: default: trajectories are not stored."""
        clock = asyncio.get_running_loop().time
        self.working = BusyMeter(settings.concurrent_episodes, clock)  # sandboxes that do something
        self.leased = BusyMeter(settings.concurrent_episodes, clock)
        self.most_leased = 0
        self.faults = 0
        self._leased = 0
        self._workload = workload
        self._fleet = fleet
        self._settings = settings
        self._version = version
        self._store = store

    async def prepare(self, task: Task) -> Path:
        return Path()

    async def run(self, attempt: Attempt) -> tuple[Trajectory, str]:
        draw, versions = self._workload.draw(attempt), [self._version()]
        self._leased += 1
        self.most_leased = max(self.most_leased, self._leased)
        try:
            with self.leased.use():
                outcome = await self._act(attempt.rollout_id, draw, versions)
        finally:
            self._leased -= 1
            self._fleet.release(attempt.rollout_id)
        trajectory = _trajectory(attempt, outcome, versions, self._settings)
        self.faults += trajectory.reward is None
        if self._store is None:
            return trajectory, attempt.rollout_id
        await asyncio.sleep(WRITE_S)
        name = self._store.save(trajectory, group=0, index=attempt.index)
        await asyncio.sleep(WRITE_S)
        return trajectory, name

    async def load(self, name: str) -> Trajectory:
        if self._store is None:
            raise StoreError(f"{name} was not stored")
        return self._store.load(name)

    async def sweep(self, names: Collection[str]) -> None:
        if self._store is not None:
            self._store.sweep(names)

    async def _act(self, session: str, draw: Draw, versions: list[int]) -> Outcome:
        """Pass the time of the rollout; append the weight version of each reply."""
        with self.working.use():
            await asyncio.sleep(draw.start_s)
        clock = asyncio.get_running_loop().time
        deadline, limit = clock() + self._settings.time_limit_s, None
        try:
            for number, (reply_s, command_s) in enumerate(draw.turns):
                if number == draw.fault_after:
                    return Outcome.SANDBOX_ERROR
                await self._fleet.reply(session, reply_s, self._settings.reply_timeout_s)
                versions.append(self._version())
                if clock() < deadline:
                    with self.working.use():
                        await asyncio.sleep(min(command_s, deadline - clock()))
                if clock() >= deadline:  # a reply that has begun is completed
                    limit = Outcome.TIME_LIMIT
                    break
        except EngineError:
            return Outcome.ENGINE_ERROR
        if draw.fault_after == len(draw.turns):
            return Outcome.GRADER_ERROR
        with self.working.use():
            await asyncio.sleep(draw.grade_s)
        return limit or (Outcome.RESOLVED if draw.resolved else Outcome.UNRESOLVED)


def _trajectory(
    attempt: Attempt, outcome: Outcome, versions: list[int], settings: RolloutSettings
) -> Trajectory:
    tokens = np.zeros(len(versions), np.int32)  # one per reply, and one for the weights that began it
    node = Node(
        parent=None,
        tokens=tokens,
        sampled=True,
        logprobs=np.zeros(len(versions), np.float32),
        version=np.array(versions, np.int32),
        turn=0,
    )
    return Trajectory(
        task_id=attempt.task.id,
        rollout_id=attempt.rollout_id,
        group_id=attempt.group_id,
        tree=TokenTree([node]),
        turns=(),
        messages=(),
        patch="",
        outcome=outcome,
        reward=settings.rewards.get(outcome, OUTCOME_RULES[outcome].reward),
    )
