"""How busy a resource is: the share of its capacity in use, averaged over time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from contextlib import contextmanager


class BusyMeter:
    """Adds up the use of a resource with room for `capacity` users at a time; for one thread."""

    def __init__(self, capacity: int = 1, clock: Callable[[], float] = time.monotonic) -> None:
        self._capacity = capacity
        self._clock = clock
        self._users = 0
        self._used = 0.0  # capacity-seconds since the last call of `share`
        self._began = self._last = clock()

    @contextmanager
    def use(self) -> Generator[None]:
        self._count(+1)
        try:
            yield
        finally:
            self._count(-1)

    def share(self) -> float:
        """Return the mean share in use since the last call, in [0, 1]; more users than room count as full."""
        self._count(0)
        elapsed, used = self._last - self._began, self._used
        self._began, self._used = self._last, 0.0
        return used / (elapsed * self._capacity) if elapsed else 0.0

    def _count(self, change: int) -> None:
        now = self._clock()
        self._used += (now - self._last) * min(self._users, self._capacity)
        self._last = now
        self._users += change
