"""Work beside the event loop that nobody is left behind by."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import ParamSpec, TypeVar

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def in_thread(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Like `asyncio.to_thread`, but a cancelled caller waits until the thread is done.

    For what changes files: nothing is written behind the back of whoever comes next.
    """
    task = asyncio.ensure_future(asyncio.to_thread(function, *args, **kwargs))
    try:
        return await asyncio.shield(task)
    except asyncio.CancelledError:
        while not task.done():
            with suppress(asyncio.CancelledError):  # again: the thread still cannot be stopped
                await asyncio.wait([task])
        if not task.cancelled():  # as it is where the event loop ends
            task.exception()  # the cancellation is what the caller hears of
        raise
