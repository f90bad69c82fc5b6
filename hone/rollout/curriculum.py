"""Which tasks give no signal: those whose rollouts, visit after visit, all have the same reward."""

from __future__ import annotations

import random
from collections import Counter

VISITS = 3  # in a row without a signal, for the metrics of a run without a curriculum
SKIPPED = 0.75  # share of the later visits of such a task that go to another one


class Curriculum:
    """Counts visits without a signal; with `visits`, such a task is sampled less."""

    def __init__(self, seed: int, visits: int | None) -> None:
        """`visits` without a signal in a row after which a task is sampled less; None: never."""
        self._seed = seed
        self._visits = visits
        self._seen: set[str] = set()
        self._silent: Counter[str] = Counter()  # visits without a signal since the last one with it

    def visited(self, task_id: str, *, signal: bool) -> None:
        self._seen.add(task_id)
        if signal:
            del self._silent[task_id]
        else:
            self._silent[task_id] += 1

    def is_silent(self, task_id: str) -> bool:
        """Return whether the last visits of a task gave no signal."""
        return self._silent[task_id] >= (self._visits or VISITS)

    def skips(self, task_id: str, position: int) -> bool:
        """Return whether the visit of a task at `position` goes to another one."""
        if self._visits is None or not self.is_silent(task_id):
            return False
        return random.Random(f"{self._seed} skip {position}").random() < SKIPPED

    @property
    def silent_share(self) -> float:
        """The share of the visited tasks whose last visits gave no signal, in [0, 1]."""
        return sum(map(self.is_silent, self._seen)) / max(1, len(self._seen))
