"""One attempt at a rollout: run it and store it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hone.environment import prepare_workspace
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.store import Store
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """What one attempt at a rollout is given."""

    rollout_id: str
    group_id: str
    task: Task
    workspace: Path  # what `Rollouts.prepare` returned
    position: int  # of the group in the order of tasks
    index: int  # in the group
    seed: int


class Rollouts(Protocol):
    """Runs and stores rollouts; `EpisodeRollouts` does so for real."""

    async def prepare(self, task: Task) -> Path:
        """Return the workspace that all rollouts of a task start from. Raises TaskError, SandboxError."""
        ...

    async def run(self, attempt: Attempt) -> tuple[Trajectory, str]:
        """Return the trajectory and the name under which it is stored."""
        ...

    async def load(self, name: str) -> Trajectory:
        """Return a stored trajectory. Raises StoreError."""
        ...

    async def sweep(self, names: Collection[str]) -> None:
        """Remove every stored rollout that is not in `names`."""
        ...


class EpisodeRollouts:
    """Rollouts in sandboxes, stored in a run directory."""

    def __init__(self, context: RolloutContext, store: Store, *, groups_per_step: int) -> None:
        self._context = context
        self._store = store
        self._groups_per_step = groups_per_step

    async def prepare(self, task: Task) -> Path:
        return await prepare_workspace(task, self._context.provider, self._context.workspaces)

    async def run(self, attempt: Attempt) -> tuple[Trajectory, str]:
        episode = Episode(
            task=attempt.task,
            rollout_id=attempt.rollout_id,
            group_id=attempt.group_id,
            workspace=attempt.workspace,
            seed=attempt.seed,
        )
        trajectory = await run_episode(episode, self._context)
        group = attempt.position % self._groups_per_step
        name = await run_in_thread(self._store.save, trajectory, group=group, index=attempt.index)
        return trajectory, name

    async def load(self, name: str) -> Trajectory:
        return await run_in_thread(self._store.load, name)

    async def sweep(self, names: Collection[str]) -> None:
        await run_in_thread(self._store.sweep, names)
