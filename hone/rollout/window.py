"""Which groups may start, and which complete groups the next step trains.

    open(step) -> room? admit(position) ... begin(position) ... complete(position) ... take(step) -> positions

A group is named by its position in the order of tasks. Begun (its first rollout dispatched) at weight version
v, it must train at step v + max_staleness at the latest; a group that only waits for a sandbox does not age.
Two rules make that bound hold, whatever the order in which groups begin and complete:

- `room`: at most (max_staleness + 1) x groups_per_step groups are admitted and not yet trained.
- `take`: of the complete groups, those with the earliest last step train first, and a step waits while it
  could not take as many of them as later steps would have no place for.

No group is discarded, so slow tasks train as often as quick ones. With max_staleness = 0 a step waits for all
of its groups.
"""

from __future__ import annotations

from collections.abc import Collection


class Window:
    """The groups that are admitted and not yet trained."""

    def __init__(self, *, groups_per_step: int, max_staleness: int, steps: int) -> None:
        """`steps` of the run: no group is admitted that none of them would train."""
        self.groups_per_step = groups_per_step
        self.max_staleness = max_staleness
        self._steps = steps
        self._version = 0
        self._taken = 0  # groups that the steps so far have trained
        self._begun_at: dict[int, int | None] = {}  # position -> weight version; None: not begun
        self._complete: set[int] = set()

    @property
    def positions(self) -> Collection[int]:
        """Of every admitted group that is not yet trained."""
        return self._begun_at.keys()

    def begun(self, position: int) -> bool:
        """Return whether a rollout of the group was dispatched."""
        return self._begun_at[position] is not None

    def last_step(self, position: int) -> int:
        """Return the last step that may train a group; it moves with the weights until the group begins."""
        version = self._begun_at[position]
        return self.max_staleness + (self._version if version is None else version)

    def start(self, step: int) -> None:
        """Begin with `step`: the steps before it are trained, and nothing is admitted."""
        self._taken = step * self.groups_per_step
        self._version = step
        self._begun_at.clear()
        self._complete.clear()

    def open(self, step: int) -> None:
        """Note that weight version `step` is in use, which makes room for more groups."""
        self._version = step

    @property
    def room(self) -> int:
        """How many more groups may be admitted now."""
        batches = min(self._version + self.max_staleness + 1, self._steps)
        return max(0, batches * self.groups_per_step - self._taken - len(self._begun_at))

    def admit(self, position: int, version: int | None = None) -> None:
        """Admit a group; `version` is that of its oldest rollout, if an earlier process began it."""
        if position in self._begun_at:
            raise ValueError(f"the group at position {position} is admitted already")
        self._begun_at[position] = version

    def begin(self, position: int) -> None:
        """Note that a rollout of a group is dispatched; only the first one of the group counts."""
        if not self.begun(position):
            self._begun_at[position] = self._version

    def complete(self, position: int) -> None:
        """Note that every rollout of a group has ended."""
        if position not in self._begun_at:
            raise ValueError(f"the group at position {position} was never admitted")
        self._complete.add(position)

    def take(self, step: int) -> list[int] | None:
        """Return the positions that `step` trains, in ascending order; None: it has to wait.

        Raises ValueError when not even all groups together keep the bound, which admission makes impossible.
        """
        by_age = sorted(self._begun_at, key=lambda position: (self.last_step(position), position))
        if by_age and self.last_step(by_age[0]) < step:
            raise ValueError(
                f"step {step}: the group at position {by_age[0]} should have trained by step "
                f"{self.last_step(by_age[0])}"
            )
        chosen = [position for position in by_age if position in self._complete][: self.groups_per_step]
        if len(chosen) < self.groups_per_step or self._leaves_too_many(chosen, by_age, step):
            return None
        for position in chosen:
            del self._begun_at[position]
            self._complete.discard(position)
        self._taken += len(chosen)
        return sorted(chosen)

    def _leaves_too_many(self, chosen: list[int], by_age: list[int], step: int) -> bool:
        """Return whether, after `chosen`, more groups would have to train by some step than can."""
        left = set(by_age) - set(chosen)
        ordered = [position for position in by_age if position in left]
        return any(
            number > (self.last_step(position) - step) * self.groups_per_step
            for number, position in enumerate(ordered, start=1)
        )
