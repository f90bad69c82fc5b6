"""An event loop whose clock jumps to the next timer when nothing else is left to do.

Sleeps, time-outs and back-offs of an hour pass at once and always in the same order: a test that runs on it
needs no short limits and no quiet machine. Threads and sockets still work: while a thread runs or data is
ready, time stands still.
"""

from __future__ import annotations

import asyncio
import selectors
from collections.abc import Coroutine
from concurrent.futures import Executor, Future
from typing import Any, TypeVar

Result = TypeVar("Result")
REAL_LIMIT_S = 60.0  # of waiting for a thread or a socket when no timer is left


class _Selector(selectors.DefaultSelector):
    """Answers at once when there is something to read, and asks the loop to move its clock otherwise."""

    loop: VirtualTimeLoop

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            return ready
        if self.loop.threads:
            return super().select(REAL_LIMIT_S)
        if timeout is None:
            ready = super().select(REAL_LIMIT_S)
            if not ready:
                raise RuntimeError("deadlock: no timer, no thread and no data for a minute")
            return ready
        self.loop.advance(timeout)
        return []


class VirtualTimeLoop(asyncio.SelectorEventLoop):
    """See the module. `time()` starts at 0."""

    def __init__(self) -> None:
        self._virtual_s = 0.0
        self.threads = 0  # calls in executors that have not ended
        selector = _Selector()
        selector.loop = self
        super().__init__(selector)

    def time(self) -> float:
        return self._virtual_s

    def advance(self, seconds: float) -> None:
        self._virtual_s += seconds

    def run_in_executor(self, executor: Executor | None, func: Any, *args: Any) -> asyncio.Future[Any]:
        future = super().run_in_executor(executor, func, *args)
        self.threads += 1
        future.add_done_callback(self._thread_ended)
        return future

    def _thread_ended(self, _: Future[Any] | asyncio.Future[Any]) -> None:
        self.threads -= 1


def run(main: Coroutine[Any, Any, Result]) -> Result:
    """`asyncio.run` on virtual time."""
    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        return runner.run(main)
