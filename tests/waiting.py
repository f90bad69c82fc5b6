"""Waiting for a condition that another process or thread brings about: one helper for every test.

The limit only ends a test that would hang; no test depends on how soon the condition holds. Code that runs on
the test's own event loop needs none of this: see `tests.virtual_time`.
"""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable

LIMIT_S = 120.0
_POLL_S = 0.02


def wait_until(
    condition: Callable[[], object], message: str | Callable[[], str] = "", *, limit_s: float = LIMIT_S
) -> None:
    """Return once `condition()` is true. Raises AssertionError with `message` after `limit_s` seconds."""
    deadline = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < deadline, _text(message)
        time.sleep(_POLL_S)


async def wait_until_async(
    condition: Callable[[], object | Awaitable[object]], message: str | Callable[[], str] = ""
) -> None:
    """`wait_until` without blocking the event loop; `condition` may be async."""
    deadline = time.monotonic() + LIMIT_S
    while True:
        result = condition()
        if await result if inspect.isawaitable(result) else result:
            return
        assert time.monotonic() < deadline, _text(message)
        await asyncio.sleep(_POLL_S)


def let_pass(seconds: float) -> None:
    """Return after this time, for a test of other processes whose leases must outlast it."""
    time.sleep(seconds)


def _text(message: str | Callable[[], str]) -> str:
    return (message if isinstance(message, str) else message()) or "the condition never held"
