"""Output for terminals. Invariant: nothing that was printed can move the cursor, colour or hide text."""

from __future__ import annotations

import logging
from collections.abc import Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from hone.utils.text import visible


class SafeConsole(Console):
    """A console that prints hidden characters as escapes; colours come from styles alone."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        for segment in super().render(renderable, options):
            yield segment if segment.control else segment._replace(text=visible(segment.text))


class SafeFormatter(logging.Formatter):
    """Formats log records, tracebacks included, with hidden characters as escapes."""

    def format(self, record: logging.LogRecord) -> str:
        return visible(super().format(record))
