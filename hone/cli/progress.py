"""A reporter for people: bars on a terminal, a line now and then where there is none. Writes to stderr."""

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


class TerminalReporter:
    """Bars while stages run, each of which leaves one line; between stages, a sign of life.

    Use as a context manager around everything that may take long.
    """

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
            TextColumn("{task.fields[said]}"),
            console=console,
            transient=True,
        )
        self._idle = self._progress.add_task("preparing", total=None, said="")

    def __enter__(self) -> TerminalReporter:
        self._progress.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._progress.stop()

    def note(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[_Bar]:
        self._count(+1)
        bar = _Bar(self._progress, self._progress.add_task(title, total=total, said=""))
        started = time.monotonic()
        try:
            yield bar
            self.note(_line(title, bar.done, bar.total, bar.said, time.monotonic() - started))
        finally:
            self._progress.remove_task(bar.task)
            self._count(-1)

    def _count(self, change: int) -> None:
        with self._mutex:
            self._open += change
            self._progress.reset(self._idle, visible=self._open == 0)


class _Bar:
    def __init__(self, progress: Progress, task: Any) -> None:
        self._progress, self.task = progress, task

    def advance(self, amount: int = 1) -> None:
        self._progress.advance(self.task, amount)

    def grow(self, total: int) -> None:
        self._progress.update(self.task, total=total)

    def say(self, text: str) -> None:
        self._progress.update(self.task, said=text)

    @property
    def done(self) -> int:
        return int(self._row.completed)

    @property
    def total(self) -> int | None:
        return None if self._row.total is None else int(self._row.total)

    @property
    def said(self) -> str:
        return self._row.fields["said"]

    @property
    def _row(self) -> Any:
        return next(row for row in self._progress.tasks if row.id == self.task)


class PlainReporter:
    """For logs: a line when a stage starts, at most one every ten seconds, and one when it ends."""

    def __init__(self, console: Console) -> None:
        self._console = console

    def __enter__(self) -> PlainReporter:
        return self

    def __exit__(self, *exc: object) -> None: ...

    def note(self, sentence: str) -> None:
        self._console.print(sentence, markup=False, highlight=False, soft_wrap=True)

    @contextmanager
    def stage(self, title: str, total: int | None = None) -> Generator[_Lines]:
        lines = _Lines(self, title, total)
        self.note(f"{title} ...")
        yield lines
        self.note(_line(title, lines.done, lines.total, lines.said, time.monotonic() - lines.started))


class _Lines:
    def __init__(self, reporter: PlainReporter, title: str, total: int | None) -> None:
        self._reporter, self._title = reporter, title
        self.total, self.done, self.said = total, 0, ""
        self.started = self._last = time.monotonic()

    def advance(self, amount: int = 1) -> None:
        self.done += amount
        now = time.monotonic()
        if now - self._last >= LINE_EVERY_S and self.done != self.total:  # the stage's end has its own line
            self._last = now
            self._reporter.note(_line(self._title, self.done, self.total, self.said, now - self.started))

    def grow(self, total: int) -> None:
        self.total = total

    def say(self, text: str) -> None:
        self.said = text


def make_reporter() -> TerminalReporter | PlainReporter:
    console = Console(stderr=True)
    return TerminalReporter(console) if console.is_terminal else PlainReporter(console)


def _line(title: str, done: int, total: int | None, said: str, seconds: float) -> str:
    count = f"{done}/{total}" if total is not None else (str(done) if done else "")
    return "  ".join(part for part in (title, count, f"{seconds:.0f} s", said) if part)
