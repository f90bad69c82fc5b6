"""The progress that a long job reports; the command line shows it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol


class Stage:
    """One part of a job, such as "training, 100 steps"; `show` is called after every change. Thread-safe."""

    def __init__(self, title: str, total: int | None, show: Callable[[Stage], None]) -> None:
        self.title, self.total = title, total  # `total` None: the length is unknown
        self.done, self.status = 0, ""
        self._show = show
        self._started = time.monotonic()
        self._mutex = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        """Add `amount` to the finished units."""
        with self._mutex:
            self.done += amount
        self._show(self)

    def set_done(self, done: int, total: int | None = None) -> None:
        """Replace the number of finished units, and the total where one is given."""
        self.done = done
        self.total = self.total if total is None else total
        self._show(self)

    def set_status(self, text: str) -> None:
        """Replace the short text beside the bar, such as "reward 0.31"."""
        self.status = text
        self._show(self)

    def line(self) -> str:
        """Return the stage as text, such as "training  3/10  12 s  reward 0.5"."""
        count = f"{self.done}/{self.total}" if self.total is not None else str(self.done or "")
        seconds = f"{time.monotonic() - self._started:.0f} s"
        return "  ".join(part for part in (self.title, count, seconds, self.status) if part)


class Reporter(Protocol):
    """Reports notes and stages; stages may be nested. Thread-safe."""

    def note(self, sentence: str) -> None:
        """Print a line that stays on the terminal."""
        ...

    def stage(self, title: str, total: int | None = None) -> AbstractContextManager[Stage]:
        """Open a stage until the context exits; `total` None: its length is unknown."""
        ...
