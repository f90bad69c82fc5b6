"""Progress of long jobs on stderr: bars on a terminal, otherwise a line every few seconds."""

from __future__ import annotations

import threading
import time
from collections.abc import Generator
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

from hone.launch.reporter import Stage

LINE_EVERY_S = 10.0


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
    def stage(self, title: str, total: int | None = None) -> Generator[Stage]:
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


def make_reporter() -> TerminalReporter | PlainReporter:
    """Return the reporter that fits stderr; enter it before the job starts."""
    console = Console(stderr=True)
    return TerminalReporter(console) if console.is_terminal else PlainReporter(console)
