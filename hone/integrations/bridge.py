"""Blocking code in a thread that asks the event loop for what only the loop can do.

    thread: work(ask) -> ask(make) ----> owner: await make()
                          ... blocks <---- its result

The rule that must not break: what is asked for is awaited in the owner's own task, so that deadlines and
cancellation reach it; and when the owner goes, the thread goes with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

T = TypeVar("T")
STOP_TIMEOUT_S = 10.0  # for the thread to come to its next question; it computes little between two


class Stopped(BaseException):
    """Raised in the thread where it asks, once nobody is there to answer."""


class Ask(Protocol):
    """Called in the thread: has `make()` awaited in the owner's task. Raises Stopped."""

    def __call__(self, make: Callable[[], Awaitable[T]]) -> T: ...


@dataclass(frozen=True, slots=True)
class _Ended:
    value: Any = None
    error: BaseException | None = None


_STOP = object()


async def in_thread(work: Callable[[Ask], T], *, name: str) -> T:
    """Run `work(ask)` in a thread of its own and return what it returns.

    An exception of something asked for is raised here, and Stopped in the thread; so is a cancellation. The
    thread has ended when this returns or raises, unless it computes on for more than STOP_TIMEOUT_S.
    """
    loop = asyncio.get_running_loop()
    asked: asyncio.Queue[Callable[[], Awaitable[Any]] | _Ended] = asyncio.Queue()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    over = asyncio.Event()

    def ask(make: Callable[[], Awaitable[Any]]) -> Any:
        try:
            loop.call_soon_threadsafe(asked.put_nowait, make)
        except RuntimeError:  # the loop is closed
            raise Stopped from None
        answer = answers.get()
        if answer is _STOP:
            answers.put(_STOP)  # for whoever asks again while unwinding
            raise Stopped
        return answer

    def body() -> None:
        try:
            ended = _Ended(value=work(ask))
        except BaseException as error:
            ended = _Ended(error=error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(asked.put_nowait, ended)
            loop.call_soon_threadsafe(over.set)

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(item := await asked.get(), _Ended):
            answers.put(await item())
    finally:
        answers.put(_STOP)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await over.wait()
            thread.join()
    if item.error is not None:
        raise item.error
    return item.value
