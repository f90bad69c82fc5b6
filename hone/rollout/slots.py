"""A bounded number of slots, of which each free one goes to the most urgent waiter."""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Any


class Slots:
    """Like `asyncio.Semaphore`, but a free slot goes to the waiter with the lowest priority value.

    Waiters of equal priority are served in order. A cancelled waiter takes no slot.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiters: list[tuple[Any, int, asyncio.Future[None]]] = []
        self._order = itertools.count()

    @asynccontextmanager
    async def hold(self, priority: tuple[float, ...]) -> AsyncGenerator[None]:
        """Hold a slot; wait for it behind every waiter with a lower priority value."""
        await self.acquire(priority)
        try:
            yield
        finally:
            self.release()

    async def acquire(self, priority: tuple[float, ...]) -> None:
        """Take a slot, to be given back by `release`; wait as in `hold`."""
        if self._free:  # then nobody waits
            self._free -= 1
            return
        granted = asyncio.get_running_loop().create_future()
        heapq.heappush(self._waiters, (priority, next(self._order), granted))
        try:
            await granted
        except asyncio.CancelledError:
            if granted.done() and not granted.cancelled():
                self.release()  # it was granted in the same turn of the loop
            raise

    def release(self) -> None:
        """Give a slot back, which goes to the most urgent waiter."""
        while self._waiters:
            _, _, granted = heapq.heappop(self._waiters)
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1
