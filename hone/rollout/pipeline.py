"""Collect rollouts while the trainer works: a window of groups, from which each step takes its batch.

    collect(step):  weights of version `step` are in use -> room in the window -> admit groups in order
                    wait until the window has a batch for the step -> return it, the oldest groups first

    in the background, for each admitted group:  rollouts -> complete -> the next `collect` may take it

With max_staleness = 0, the window holds one batch and a step waits for all of it. A run that was killed goes
on from its ledger: finished rollouts are used, positions are neither skipped nor trained twice.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from hone.rollout.groups import Group, GroupCollector
from hone.rollout.window import Window
from hone.types import Trajectory
from hone.utils.concurrency import cancel_all, task_group


class Pipeline:
    """Collects the groups of a run in the background; call `collect` inside of `running` only."""

    def __init__(self, groups: GroupCollector, window: Window, *, group_size: int) -> None:
        self._groups = groups
        self._window = window
        self._group_size = group_size
        self._complete: dict[int, Group] = {}  # position -> group
        self._changed = asyncio.Event()
        self._running: set[asyncio.Task[None]] = set()
        self._jobs: asyncio.TaskGroup | None = None
        self._next = 0  # position
        self._used: set[int] = set()  # positions that are admitted or trained

    @asynccontextmanager
    async def running(self, step: int) -> AsyncGenerator[None]:
        """Go on from `step` with what the ledger holds; at the end, end every rollout under way.

        Raises the errors of `GroupCollector.collect`.
        """
        history = await self._groups.recover(step)
        self._window.start(step)
        self._complete.clear()
        self._used, self._next = set(history.consumed), 0
        async with task_group() as self._jobs:
            try:
                for position, version in sorted(history.oldest_versions().items()):
                    self._admit(position, version)
                yield
            finally:
                await cancel_all(self._running)

    async def collect(self, step: int) -> list[Group]:
        """Return the groups that `step` trains, in order; weight version `step` must be in use.

        Call `ledger.commit_step(step, ...)` after using them.
        """
        self._groups.version = step
        self._window.open(step)
        for _ in range(self._window.room):
            self._admit(self._next_position())
        while (positions := self._window.take(step)) is None:
            self._changed.clear()
            await self._changed.wait()
        batch = [self._complete.pop(position) for position in positions]
        for group in batch:
            self._groups.forget(group, planned=self._group_size)
        return batch

    async def collect_trajectories(self, step: int) -> list[Trajectory]:
        """Return the rollouts of `collect`, group by group."""
        return [trajectory for group in await self.collect(step) for trajectory in group.trajectories]

    def metrics(self) -> dict[str, float]:
        """Return tasks/no_signal, the share of the tasks seen so far whose last visits gave no signal."""
        return {"tasks/no_signal": self._groups.curriculum.silent_share}

    def _next_position(self) -> int:
        while self._next in self._used:
            self._used.discard(self._next)
            self._next += 1
        return self._next

    def _admit(self, position: int, version: int | None = None) -> None:
        assert self._jobs is not None, "a pipeline collects inside of `running`"
        self._used.add(position)
        self._window.admit(position, version)
        job = self._jobs.create_task(self._collect(position))
        self._running.add(job)
        job.add_done_callback(self._running.discard)

    async def _collect(self, position: int) -> None:
        self._complete[position] = await self._groups.collect(position, self._window)
        self._window.complete(position)
        self._changed.set()
