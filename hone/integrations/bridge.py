"""Run blocking code in a thread that awaits coroutines in its owner's task.

    thread: work(ask) -> ask(make) ----> owner: await make()
                          ... blocks <---- its result

Invariant: the owner's own task awaits each coroutine, so deadlines and cancellation reach it; the thread ends
with its owner.
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
STOP_TIMEOUT_S = 10.0  # for the thread to call `ask` again; it computes little between two calls


class Stopped(BaseException):
    """Raised by `ask` in the thread after its owner has gone."""


class Ask(Protocol):
    """Called in the thread: awaits `make()` in the owner's task and returns its result. Raises Stopped."""

    def __call__(self, make: Callable[[], Awaitable[T]]) -> T: ...


@dataclass(frozen=True, slots=True)
class _Ended:
    value: Any = None
    error: BaseException | None = None


_STOP = object()


async def in_thread(work: Callable[[Ask], T], *, name: str) -> T:
    """Run `work(ask)` in a new thread; return what it returns and raise what it raises.

    An exception of an awaited coroutine, and a cancellation, is raised here; the thread gets Stopped. The
    thread has ended when this returns, unless it computes for more than STOP_TIMEOUT_S between two calls.
    """
    loop = asyncio.get_running_loop()
    requests: asyncio.Queue[Callable[[], Awaitable[Any]] | _Ended] = asyncio.Queue()
    answers: queue.SimpleQueue[Any] = queue.SimpleQueue()
    over = asyncio.Event()

    def ask(make: Callable[[], Awaitable[Any]]) -> Any:
        try:
            loop.call_soon_threadsafe(requests.put_nowait, make)
        except RuntimeError:  # the loop is closed
            raise Stopped from None
        answer = answers.get()
        if answer is _STOP:
            answers.put(_STOP)  # for further calls while the thread unwinds
            raise Stopped
        return answer

    def body() -> None:
        try:
            ended = _Ended(value=work(ask))
        except BaseException as error:
            ended = _Ended(error=error)
        with contextlib.suppress(RuntimeError):  # the loop is closed
            loop.call_soon_threadsafe(requests.put_nowait, ended)
            loop.call_soon_threadsafe(over.set)

    thread = threading.Thread(target=body, name=name, daemon=True)
    thread.start()
    try:
        while not isinstance(item := await requests.get(), _Ended):
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
