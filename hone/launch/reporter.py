"""Progress of long jobs on stderr: bars on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

from hone.utils.terminal import SafeConsole

LINE_EVERY_S = 10.0


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


class Reporter:
    """Reports notes and stages as lines; stages may be nested. Thread-safe.

    A stage prints a line when it starts, at most one every LINE_EVERY_S, and one when it ends.
    """

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> Reporter:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def note(self, sentence: str) -> None:
        """Print a line that stays on the terminal."""
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[Stage]:
        """Open a stage until the context exits; `total` None: its length is unknown."""
        last = time.monotonic()

        def show(stage: Stage) -> None:
            nonlocal last
            now = time.monotonic()
            if now - last >= LINE_EVERY_S and stage.done != stage.total:  # the last line is printed at exit
                last = now
                self.note(stage.line())

        stage = Stage(title, total, show)
        self.note(f"{title} ...")
        yield stage
        self.note(stage.line())


class TerminalReporter(Reporter):
    """Shows a bar for each open stage and a spinner between stages; a finished stage leaves one line."""

    def __init__(self, console: Console) -> None:
        super().__init__(console)
        self._mutex = threading.Lock()
        self._open = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}", markup=False),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}", markup=False),
            console=console,
            transient=True,
        )
        self._idle = self._progress.add_task("preparing", total=None, status="")

    def __enter__(self) -> TerminalReporter:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[Stage]:
        self._count(+1)
        task = self._progress.add_task(title, total=total, status="")

        def show(stage: Stage) -> None:
            self._progress.update(task, completed=stage.done, total=stage.total, status=stage.status)

        stage = Stage(title, total, show)
        try:
            yield stage
            self.note(stage.line())
        finally:
            self._progress.remove_task(task)
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._mutex:
            self._open += change
            self._progress.reset(self._idle, visible=self._open == 0)


def set_library_variables() -> None:
    """Set environment variables of libraries for a long job, unless the user has set them."""
    os.environ.setdefault("TQDM_DISABLE", "1")  # progress bars of libraries would overwrite Hone's
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    # Spinning OpenMP threads take cores from the sandboxes; short spins are as fast on an idle machine and
    # three times faster on a busy one.
    os.environ.setdefault("GOMP_SPINCOUNT", "5000")


def make_reporter(*, quiet: bool = False) -> Reporter:
    """Return the reporter that fits stderr, or one that prints nothing; enter it before the job starts."""
    console = SafeConsole(stderr=True, quiet=quiet)
    if quiet:
        return Reporter(console)
    return TerminalReporter(console) if console.is_terminal else Reporter(console)
