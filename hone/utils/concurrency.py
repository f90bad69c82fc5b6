"""Run blocking work in threads, and wait for tasks, without leaving either behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any, ParamSpec, TypeVar, cast

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def run_in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run blocking work in a thread; cancellation waits for it to finish.

    Use it for work that changes files: `asyncio.to_thread` would leave the thread writing after its caller
    has gone. Returns what `function` returns and raises what it raises.
    """
    return await finish(asyncio.to_thread(function, *args, **kwargs))


async def finish(work: Coroutine[Any, Any, Result]) -> Result:
    """Run `work` to its end, also when cancelled: the cancellation is raised afterwards.

    Returns what `work` returns and raises what it raises.
    """
    task = asyncio.ensure_future(work)
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # a second cancellation cannot stop it either
                await asyncio.wait([task])
        if not task.cancelled():  # it is when the event loop shuts down
            task.exception()  # mark it as retrieved: the caller gets the cancellation
        raise


@asynccontextmanager
async def task_group() -> AsyncGenerator[asyncio.TaskGroup]:
    """Yield an `asyncio.TaskGroup` that raises the first task's error itself instead of a group of errors.

    The other errors are usually follow-on errors; they stay visible as the cause.
    """
    try:
        async with asyncio.TaskGroup() as tasks:
            yield tasks
    except BaseExceptionGroup as failed:
        first: BaseException = failed
        while isinstance(first, BaseExceptionGroup):
            first = cast("BaseExceptionGroup[BaseException]", first).exceptions[0]
        raise first from failed


async def finish_within(tasks: Collection[asyncio.Task[Any]], timeout_s: float) -> None:
    """Wait for tasks, cancel those that are not done after `timeout_s`, and wait for these to end."""
    if tasks:
        _, late = await asyncio.wait(tasks, timeout=timeout_s)
        await cancel_all(late)


async def cancel_all(tasks: Collection[asyncio.Future[Any]]) -> None:
    """Cancel tasks and wait for them to end; their errors are dropped."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
