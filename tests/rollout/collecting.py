"""Collects steps with a pipeline over given tasks."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from hone.rollout.attempts import EpisodeRollouts, Rollouts
from hone.rollout.episode import RolloutContext
from hone.rollout.groups import Group, GroupCollector, RolloutProgress
from hone.rollout.ledger import Ledger
from hone.rollout.order import TaskOrder
from hone.rollout.pipeline import Pipeline
from hone.rollout.settings import RolloutSettings
from hone.rollout.store import Store
from hone.rollout.window import Window
from hone.types import Task


class InOrder(TaskOrder):
    """The tasks in the order given, again and again; `spare` replaces groups without variance."""

    def __init__(
        self, tasks: Sequence[Task], spare: Sequence[Task] = (), *, each: int = 0, seed: int = 0
    ) -> None:
        super().__init__(tasks, seed=seed, groups_per_step=len(tasks))
        self._spare, self._each = spare, each

    def task(self, position: int) -> Task:
        return self.tasks[position % len(self.tasks)]

    def replacements(self, position: int) -> list[Task]:
        return list(self._spare[position % len(self.tasks) :: len(self.tasks)][: self._each])


def pipeline_of(
    rollouts: Rollouts,
    ledger: Ledger,
    order: TaskOrder,
    settings: RolloutSettings,
    *,
    groups_per_step: int,
    steps: int = 1,
    seed: int = 0,
    progress: Callable[[RolloutProgress], None] = lambda _: None,
) -> Pipeline:
    groups = GroupCollector(
        rollouts, ledger, order, settings, seed=seed, groups_per_step=groups_per_step, progress=progress
    )
    staleness = settings.max_staleness
    window = Window(groups_per_step=groups_per_step, max_staleness=staleness, steps=steps)
    return Pipeline(groups, window, group_size=settings.group_size)


class Collector:
    """Collects one on-policy step at a time, a group for each of its tasks."""

    def __init__(
        self,
        context: RolloutContext,
        ledger: Ledger,
        store: Store,
        *,
        seed: int = 0,
        progress: Callable[[RolloutProgress], None] = lambda _: None,
    ) -> None:
        self._context, self._ledger, self._store = context, ledger, store
        self._seed, self._progress = seed, progress

    async def collect(self, step: int, tasks: Sequence[Task], spare: Sequence[Task] = ()) -> list[Group]:
        settings = self._context.settings
        pipeline = pipeline_of(
            EpisodeRollouts(self._context, self._store, groups_per_step=len(tasks)),
            self._ledger,
            InOrder(tasks, spare, each=settings.replace_constant_groups),
            settings,
            groups_per_step=len(tasks),
            steps=step + 1,
            seed=self._seed,
            progress=self._progress,
        )
        async with pipeline.running(step):
            return await pipeline.collect(step)
