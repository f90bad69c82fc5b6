"""Blocking work of async code, in threads that are always waited for."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def run_in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run blocking work in a thread; cancellation waits for it to finish.

    Use it for work that changes files: `asyncio.to_thread` would leave the thread writing after its caller
    has gone. Returns what `function` returns and raises what it raises.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # a second cancellation cannot stop the thread either
                await asyncio.wait([task])
        if not task.cancelled():  # it is when the event loop shuts down
            task.exception()  # mark it as retrieved: the caller gets the cancellation
        raise
