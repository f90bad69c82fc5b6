"""The time limit of an agent, which counts only the time in which the agent could act."""

from __future__ import annotations

import asyncio
from collections.abc import Generator
from contextlib import contextmanager


class TimeLimit:
    """A time limit that fires only between pauses. A pause that begins after the limit does not hold it up.

    Several pauses may overlap: then the limit waits for the end of the last.
    """

    def __init__(self, timeout: asyncio.Timeout) -> None:
        self._timeout = timeout
        self._deadline = timeout.when()
        self._pauses = 0

    @contextmanager
    def paused(self) -> Generator[None]:
        """Let the limit fire after this context, but not in it. Its time counts."""
        if self._deadline is None or asyncio.get_running_loop().time() >= self._deadline:
            yield
            return
        if self._pauses == 0:
            self._timeout.reschedule(None)
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            if self._pauses == 0:
                self._timeout.reschedule(self._deadline)

    @contextmanager
    def extended(self) -> Generator[None]:
        """Let the limit fire later by the time of this context, which does not count."""
        loop = asyncio.get_running_loop()
        started = loop.time()
        with self.paused():
            try:
                yield
            finally:
                if self._deadline is not None:
                    self._deadline += loop.time() - started
