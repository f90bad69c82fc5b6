"""Asynchronous work for callers that block: each piece has an event loop in a thread of its own.

The caller's thread may run a loop itself, as a notebook does. Ctrl-C cancels the work, waits for its cleanup,
and is raised in the caller.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future
from contextlib import AbstractAsyncContextManager
from typing import Any, Generic, TypeVar

from hone.integrations.loop_thread import LoopThread
from hone.utils.errors import UsageError

T = TypeVar("T")
Result = TypeVar("Result")
Tasks = list[asyncio.Task[Any]]


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
        self._left: asyncio.Event
        self._tasks: Tasks
        self._ended: Future[None]

    def enter(self) -> T:
        """Open it. Raises UsageError if it is open, and any error of opening it."""
        if self._thread is not None:
            raise UsageError(f"{self._name} is open already: open another one")
        self._thread, self._left, self._tasks = LoopThread("hone"), asyncio.Event(), []
        ready: Future[T] = Future()
        try:
            self._ended = self._thread.start(_tracked(self._hold(ready), self._tasks))
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

    async def _tell(self) -> None:
        self._left.set()

    def _end(self, *, cancel: bool) -> None:
        thread, self._thread = self._thread, None
        if thread is None:
            return
        try:
            if cancel:
                thread.start(_cancel(self._tasks)).result()
            else:
                thread.start(self._tell()).result()
                self._ended.result()
        except KeyboardInterrupt:
            thread.start(_cancel(self._tasks)).result()
            raise
        finally:
            thread.stop()


def _finish(thread: LoopThread, work: Coroutine[Any, Any, T]) -> T:
    tasks: Tasks = []
    try:
        return thread.start(_tracked(work, tasks)).result()
    except KeyboardInterrupt:
        thread.start(_cancel(tasks)).result()
        raise


async def _tracked(work: Coroutine[Any, Any, T], tasks: Tasks) -> T:
    """Await `work`, and add the task that does so to `tasks` before anything else runs."""
    task = asyncio.current_task()
    assert task is not None, "a coroutine is awaited by a task"
    tasks.append(task)
    return await work


async def _cancel(tasks: Tasks) -> None:
    """Cancel tasks and wait until they have ended."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
