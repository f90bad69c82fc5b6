"""Progress of long jobs on stderr: bars on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)

LINE_EVERY_S = 10.0


class _Stage:
    """Counts one stage; subclasses show it in `_show`."""

    def __init__(self, title: str, total: int | None) -> None:
        self._title, self._total = title, total
        self._done, self._status = 0, ""
        self._started = time.monotonic()
        self._mutex = threading.Lock()

    def advance(self, amount: int = 1) -> None:
        with self._mutex:
            self._done += amount
        self._show()

    def grow(self, total: int) -> None:
        self._total = total
        self._show()

    def set_status(self, text: str) -> None:
        self._status = text
        self._show()

    def line(self) -> str:
        """Return the stage as text, such as "training  3/10  12 s  reward 0.5"."""
        count = f"{self._done}/{self._total}" if self._total is not None else str(self._done or "")
        seconds = f"{time.monotonic() - self._started:.0f} s"
        return "  ".join(part for part in (self._title, count, seconds, self._status) if part)

    def _show(self) -> None:
        raise NotImplementedError


class TerminalReporter:
    """Shows a bar for each open stage and a spinner between stages; a finished stage leaves one line."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._mutex = threading.Lock()
        self._open = 0
        self._progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[status]}"),
            console=console,
            transient=True,
        )
        self._idle = self._progress.add_task("preparing", total=None, status="")

    def __enter__(self) -> TerminalReporter:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def note(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[_BarStage]:
        self._count(+1)
        task = self._progress.add_task(title, total=total, status="")
        stage = _BarStage(self._progress, task, title, total)
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


class _BarStage(_Stage):
    def __init__(self, progress: Progress, task: Any, title: str, total: int | None) -> None:
        super().__init__(title, total)
        self._progress, self._task = progress, task

    def _show(self) -> None:
        self._progress.update(self._task, completed=self._done, total=self._total, status=self._status)


class PlainReporter:
    """For logs: prints a line when a stage starts, at most one every LINE_EVERY_S, and one when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainReporter:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def note(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[_LineStage]:
        stage = _LineStage(self, title, total)
        self.note(f"{title} ...")
        yield stage
        self.note(stage.line())


class _LineStage(_Stage):
    def __init__(self, reporter: PlainReporter, title: str, total: int | None) -> None:
        super().__init__(title, total)
        self._reporter, self._last = reporter, self._started

    def _show(self) -> None:
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S and self._done != self._total:  # the last line is printed at exit
            self._last = now
            self._reporter.note(self.line())


def make_reporter() -> TerminalReporter | PlainReporter:
    """Return the reporter that fits stderr; enter it before the job starts."""
    console = Console(stderr=True)
    return TerminalReporter(console) if console.is_terminal else PlainReporter(console)
