"""Asynchronous work for callers that block: each piece has an event loop in a thread of its own.

The caller's thread may run a loop itself, as a notebook does. Ctrl-C cancels the work, waits for its cleanup,
and is raised in the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import CancelledError, Future
from contextlib import AbstractAsyncContextManager, suppress
from typing import Any, Generic, TypeVar

from hone.integrations.loop_thread import LoopThread
from hone.utils.errors import UsageError

T = TypeVar("T")
Result = TypeVar("Result")


def block_on(work: Coroutine[Any, Any, T]) -> T:
    """Run `work` to its end and return its result, or raise its error."""
    thread = LoopThread("hone")
    try:
        return _finish(thread, work)
    finally:
        thread.stop()


class Held(Generic[T]):
    """An asynchronous context manager that is held open for code that blocks.

    One task enters and leaves it, as task groups and timeouts require.
    """

    def __init__(self, name: str, opened: Callable[[], AbstractAsyncContextManager[T]]) -> None:
        """`opened` returns the context manager; `name` is for errors."""
        self._name, self._opened = name, opened
        self._thread: LoopThread | None = None
        self._task: asyncio.Task[None]
        self._left: asyncio.Event

    def enter(self) -> T:
        """Open it. Raises UsageError if it is open, and any error of opening it."""
        if self._thread is not None:
            raise UsageError(f"{self._name} is open already: open another one")
        self._thread, self._left = LoopThread("hone"), asyncio.Event()
        ready: Future[T] = Future()
        self._task = _begin(self._thread, self._hold(ready))
        try:
            return ready.result()
        except BaseException:
            self._end(cancel=True)
            raise

    def run(self, work: Coroutine[Any, Any, Result]) -> Result:
        """Run `work` in the loop in which it is open. Raises UsageError outside of `with`."""
        if self._thread is None:
            work.close()
            raise UsageError(f"{self._name} is not open: use it inside of its `with` block")
        return _finish(self._thread, work)

    def leave(self) -> None:
        """Close it, and raise any error of closing it."""
        self._end(cancel=False)

    async def _hold(self, ready: Future[T]) -> None:
        try:
            async with self._opened() as value:
                ready.set_result(value)
                await self._left.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    def _end(self, *, cancel: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if cancel:
                _cancel(thread, self._task)
            with suppress(CancelledError):
                thread.start(_join(self._task, self._left)).result()
        finally:
            thread.stop()


def _begin(thread: LoopThread, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
    async def begin() -> asyncio.Task[T]:
        return asyncio.create_task(work)

    return thread.start(begin()).result()


def _finish(thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    task = _begin(thread, work)
    joined = thread.start(_join(task))
    try:
        return joined.result()
    except KeyboardInterrupt:
        _cancel(thread, task)
        with suppress(Exception, CancelledError):
            joined.result()
        raise


async def _join(task: asyncio.Task[T], told: asyncio.Event | None = None) -> T:
    """Set `told`, wait for the end of `task`, and return its result."""
    if told is not None:
        told.set()
    await asyncio.wait([task])
    return task.result()


def _cancel(thread: LoopThread, task: asyncio.Task[Any]) -> None:
    async def cancel() -> None:
        task.cancel()

    thread.start(cancel()).result()
