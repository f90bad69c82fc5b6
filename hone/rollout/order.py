"""The order of tasks: position -> task, the same in every process of a run.

Position p is that of the p-th group; on-policy, step s trains positions s x groups_per_step and on. Each
epoch has its own random order.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence

from hone.types import Task


class TaskOrder:
    """The tasks of a run in the order of their groups; deterministic in seed and position."""

    def __init__(
        self, tasks: Sequence[Task], *, seed: int, groups_per_step: int, replacements: int = 0
    ) -> None:
        """`replacements`: how often the group of a position may be replaced for equal rewards."""
        self.tasks = tasks
        self._seed = seed
        self._groups_per_step = groups_per_step
        self._replacements = replacements
        self._epoch: tuple[int, list[int]] = (-1, [])
        self._spares: tuple[int, list[Task]] = (-1, [])

    def task(self, position: int) -> Task:
        """Return the task of the group at `position`."""
        epoch, index = divmod(position, len(self.tasks))
        if self._epoch[0] != epoch:
            order = list(range(len(self.tasks)))
            random.Random(f"{self._seed} epoch {epoch}").shuffle(order)
            self._epoch = epoch, order
        return self.tasks[self._epoch[1][index]]

    def replacements(self, position: int) -> list[Task]:
        """Return the tasks that may replace that of a position in turn, for equal rewards of its group.

        Those of a batch of positions are different tasks.
        """
        batch, index = divmod(position, self._groups_per_step)
        if self._spares[0] != batch:
            first = batch * self._groups_per_step
            chosen = [self.task(first + offset) for offset in range(self._groups_per_step)]
            others = [task for task in self.tasks if task not in chosen] if self._replacements else []
            count = min(len(others), self._groups_per_step * self._replacements)
            self._spares = batch, random.Random(f"{self._seed} spare {batch}").sample(others, count)
        return self._spares[1][index :: self._groups_per_step][: self._replacements]

    def refill(self, position: int, turn: int, without: Collection[str]) -> Task | None:
        """Return the `turn`-th task to try in place of one that is set aside; None: every task is.

        Args:
            without: ids of tasks that are set aside.
        """
        usable = [task for task in self.tasks if task.id not in without]
        return random.Random(f"{self._seed} refill {position} {turn}").choice(usable) if usable else None
