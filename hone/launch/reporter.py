"""The interface by which a long job reports its progress; the command line prints it."""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol


class Stage(Protocol):
    """One part of a job, such as "training, 100 steps"."""

    def advance(self, amount: int = 1) -> None:
        """Add `amount` to the finished units."""
        ...

    def grow(self, total: int) -> None:
        """Change the total number of units."""
        ...

    def set_status(self, text: str) -> None:
        """Replace the short text beside the bar, such as "reward 0.31"."""
        ...


class Reporter(Protocol):
    """Reports notes and stages; stages may be nested. Thread-safe."""

    def note(self, sentence: str) -> None:
        """Print a line that stays on the terminal."""
        ...

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[Stage]:
        """Open a stage until the context exits; `total` None: its length is unknown."""
        ...
