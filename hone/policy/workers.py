"""Threads that render and encode long conversations, so that these do not hold up the event loop.

Tokenizers release the interpreter's lock while they encode; the rest of the work lets the loop run every few
milliseconds. At most WORKERS threads work at a time, and further work waits in the order of its arrival.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Any, ParamSpec, TypeVar, cast

WORKERS = max(1, min(4, (os.cpu_count() or 1) // 2))
LONG = 1 << 15  # characters that take about as long as 20 changes of thread

_threads = ThreadPoolExecutor(WORKERS, thread_name_prefix="hone-render")

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


async def run_in_worker(
    function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Return the result of a function that ran in one of the threads; raise what it raises.

    Cancellation waits for a function that has begun.
    """
    job = _threads.submit(function, *args, **kwargs)
    waiting = asyncio.wrap_future(job)
    try:
        return await asyncio.shield(waiting)
    except asyncio.CancelledError:
        if not job.cancel():
            while not waiting.done():
                with suppress(asyncio.CancelledError):  # a second cancellation cannot stop the thread either
                    await asyncio.wait([waiting])
            waiting.exception()  # mark it as retrieved: the caller gets the cancellation
        raise


async def run_by_size(
    size: int, function: Callable[Parameters, Result], *args: Parameters.args, **kwargs: Parameters.kwargs
) -> Result:
    """Run a function at once if it has little to do, in a thread if `size` is above LONG characters."""
    if size > LONG:
        return await run_in_worker(function, *args, **kwargs)
    return function(*args, **kwargs)


def text_size(*values: object, limit: int = LONG) -> int:
    """Return the number of characters in all strings of JSON values; stop counting above `limit`.

    Each number, list and object counts as one character more.
    """
    size, pending = 0, list(values)
    while pending and size <= limit:
        value = pending.pop()
        size += 1
        if isinstance(value, str):
            size += len(value)
        elif isinstance(value, Mapping):
            pending += cast("Mapping[str, Any]", value)
            pending += cast("Mapping[str, Any]", value).values()
        elif isinstance(value, Sequence):
            pending += cast("Sequence[Any]", value)
    return size
