"""Waiting for a condition that another process or thread brings about: one helper for every test.

The limit only ends a test that would hang; no test depends on how soon the condition holds. Code that runs on
the test's own event loop needs none of this: see `tests.virtual_time`.
"""

from __future__ import annotations

import asyncio
import inspect
import threading
import time
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

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


class HeldFunction:
    """Stands in for `owner.name`, which a thread calls: waits for `release` before it does its work."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> None:
        self._function = getattr(owner, name)
        self._begun, self._released, self._ended = (threading.Event() for _ in range(3))
        monkeypatch.setattr(owner, name, self)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        self._begun.set()
        assert self._released.wait(LIMIT_S)
        try:
            return self._function(*args, **kwargs)
        finally:
            self._ended.set()

    async def begun(self) -> None:
        assert await asyncio.to_thread(self._begun.wait, LIMIT_S)

    def release(self) -> None:
        self._released.set()

    async def ended(self) -> None:
        assert await asyncio.to_thread(self._ended.wait, LIMIT_S)


def let_pass(seconds: float) -> None:
    """Return after this time, for a test of other processes whose leases must outlast it."""
    time.sleep(seconds)


def _text(message: str | Callable[[], str]) -> str:
    return (message if isinstance(message, str) else message()) or "the condition never held"
