"""Rollouts of a recipe for another trainer: it owns the engine and the schedule, Hone everything else.

    peer: generate(prompt ids) <- chat <- agent <-> sandbox -> patch -> verdict -> reward: Trajectory

    async with open_rollout_service(settings, generate) as service:
        trajectory = await service.rollout(task, group_id="7", index=0, seed=1)
        rows = branches(trajectory, masked=service.is_masked(trajectory))

There is no learner and no ledger: the peer schedules. Rollouts are stored in the run directory.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path

from hone.config import ConfigError, RunSettings
from hone.environment import prepare_workspace
from hone.grading.assess import check_gradeable
from hone.integrations.rollouts.engine import Generate, PeerEngine
from hone.launch.policy import Policy, chats, load_policy, require_exact_sampling
from hone.launch.runtime import Runtime, open_context, open_runtime
from hone.outcomes import Outcome
from hone.policy.engines.open import vocabulary_size
from hone.policy.settings import SamplingSettings
from hone.rollout.episode import Episode, RolloutContext, retry_infrastructure_faults, run_episode
from hone.rollout.rewards import is_masked
from hone.rollout.store import Store
from hone.sandbox import SandboxError
from hone.tasks.errors import TaskError
from hone.tasks.sources import load_splits
from hone.tasks.splits import Splits
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread


class RolloutService:
    """Runs rollouts; made by `open_rollout_service`."""

    def __init__(
        self,
        settings: RunSettings,
        runtime: Runtime,
        context: RolloutContext,
        policy: Policy,
        engine: PeerEngine,
        splits: Splits,
    ) -> None:
        self.settings = settings
        self.policy = policy
        self.splits = splits
        self.tasks: Mapping[str, Task] = {task.id: task for _, tasks in splits.named() for task in tasks}
        self._runtime = runtime
        self._context = context
        self._engine = engine
        self._store = Store(settings.run_dir / "rollouts")
        self._slots = asyncio.Semaphore(settings.rollout.concurrent_episodes)

    async def rollout(
        self,
        task: Task,
        *,
        group_id: str,
        index: int,
        seed: int,
        sampling: SamplingSettings | None = None,
        evaluation: bool = False,
    ) -> Trajectory:
        """Return a graded rollout, whatever its outcome; infrastructure faults are retried before.

        The reward is None exactly for an infrastructure fault. At most `rollout.concurrent_episodes` rollouts
        run; others wait. Cancellation closes the sandbox. Raises HoneError when the recipe is wrong.

        Args:
            group_id: of the rollouts of one task that share a baseline.
            index: in the group.
            sampling: in place of the recipe's, such as for a validation.
            evaluation: whether the grading runs all controls.
        """
        context = self._context_of(sampling, evaluation=evaluation)
        run = functools.partial(self._attempt, context, task, group_id, index, seed)
        async with self._slots:
            return await retry_infrastructure_faults(run, self.settings.rollout)

    def is_masked(self, trajectory: Trajectory) -> bool:
        """Return whether the recipe keeps the rollout in the baseline but does not train on it."""
        return is_masked(trajectory, self.settings.rollout)

    def _context_of(self, sampling: SamplingSettings | None, *, evaluation: bool) -> RolloutContext:
        context = self._context
        if evaluation:
            context = dataclasses.replace(context, grader=self._runtime.evaluation_grader)
        if sampling is not None:
            settings = self.settings.model_copy(update={"sampling": sampling})
            context = dataclasses.replace(
                context,
                new_chat=chats(self.policy, self._engine, settings),
                sampler=dataclasses.replace(context.sampler, sampling=sampling.model_dump()),
            )
        return context

    async def _attempt(
        self, context: RolloutContext, task: Task, group_id: str, index: int, seed: int
    ) -> Trajectory:
        trajectory = await prepare_and_run(
            context, task, rollout_id=f"{group_id}-{index}", group_id=group_id, seed=seed
        )
        await run_in_thread(self._store.save, trajectory, group=0, index=index)
        return trajectory


async def prepare_and_run(
    context: RolloutContext, task: Task, *, rollout_id: str, group_id: str, seed: int
) -> Trajectory:
    """Run one rollout of a task; a workspace that cannot be prepared is an infrastructure fault."""
    episode = Episode(task=task, rollout_id=rollout_id, group_id=group_id, workspace=Path(), seed=seed)
    try:
        episode.workspace = await prepare_workspace(task, context.provider, context.workspaces)
    except (SandboxError, TaskError) as error:
        return episode.trajectory(Outcome.SANDBOX_ERROR, context, str(error))
    return await run_episode(episode, context)


@asynccontextmanager
async def open_rollout_service(
    settings: RunSettings, generate: Generate, *, processes: int = 1
) -> AsyncGenerator[RolloutService]:
    """Open everything that rollouts of a recipe need, except the engine, which `generate` asks.

    `processes` of the peer that each open a service share the bounds of the recipe. The recipe's model gives
    the tokenizer alone; its `engine` gives `context_tokens` alone.

    Raises ConfigError, PolicyError, TaskError, ProviderUnavailable.
    """
    require_plain_rollouts(settings)
    require_exact_sampling(settings)
    settings = share_bounds(settings, processes)
    policy = await asyncio.to_thread(load_policy, settings)
    splits = await asyncio.to_thread(_load_tasks, settings)
    engine = PeerEngine(
        generate,
        vocabulary=vocabulary_size(policy.settings.path, policy.tokenizer),
        context_tokens=settings.engine.context_tokens,
    )
    new_chat = chats(policy, engine, settings)
    async with (
        open_runtime(settings) as runtime,
        open_context(runtime, settings, settings.agent, new_chat) as context,
    ):
        yield RolloutService(settings, runtime, context, policy, engine, splits)


def share_bounds(settings: RunSettings, processes: int) -> RunSettings:
    """Return the settings of each of `processes`, which together keep the recipe's bounds."""

    def share(bound: int) -> int:
        return max(1, bound // processes)

    rollout, sandbox, grading = settings.rollout, settings.sandbox, settings.grading
    sandboxes = None if rollout.sandboxes is None else share(rollout.sandboxes)
    episodes = share(rollout.concurrent_episodes)
    starts = share(sandbox.max_concurrent_starts)
    return settings.model_copy(
        update={
            "rollout": rollout.model_copy(update={"concurrent_episodes": episodes, "sandboxes": sandboxes}),
            "sandbox": sandbox.model_copy(update={"max_concurrent_starts": starts}),
            "grading": grading.model_copy(update={"concurrency": share(grading.concurrency)}),
        }
    )


def require_plain_rollouts(settings: RunSettings) -> None:
    """Raise ConfigError for settings that only Hone's own training uses, or that give no tokens."""
    if not settings.agent.uses_policy:
        raise ConfigError(
            f'agent.kind = "{settings.agent.kind}" asks no policy, so nothing can be trained: choose another'
        )
    require_one_reward(settings)


def require_one_reward(settings: RunSettings) -> None:
    """Raise ConfigError for settings that score single turns."""
    for name in ("judge", "progress"):
        if getattr(settings, name).enabled:
            raise ConfigError(
                f"{name}.enabled scores single turns, and another trainer takes one reward per rollout: "
                "remove it, or train with `hone train`"
            )


def _load_tasks(settings: RunSettings) -> Splits:
    splits = load_splits(settings.tasks)
    check_gradeable(task for _, tasks in splits.named() for task in tasks)
    return splits
