"""What a long job tells the person who started it. The command line shows it; tests may collect it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Stage(Protocol):
    """One part of a job, such as "training, 100 steps"."""

    def advance(self, amount: int = 1) -> None:
        """So much more of the stage is done."""
        ...

    def grow(self, total: int) -> None:
        """The stage turned out to have another total."""
        ...

    def say(self, text: str) -> None:
        """Replace the few words beside the bar, such as "reward 0.31"."""
        ...


class Reporter(Protocol):
    """Stages may lie inside one another. May be called from any thread."""

    def note(self, sentence: str) -> None:
        """A line that stays."""
        ...

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[Stage]:
        """A stage begins; it ends with the context. `total` None: its length is not known."""
        ...
