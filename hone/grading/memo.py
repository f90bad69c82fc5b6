"""Remember values, and compute each once however many ask for it at one time."""

from __future__ import annotations

import asyncio
import hashlib
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

T = TypeVar("T")


class _InFlight(Generic[T]):
    """The callers that want one value: the first computes it, the others wait for the lock and the value."""

    def __init__(self) -> None:
        self.lock = asyncio.Lock()
        self.values: list[T] = []  # one, once it is computed


class Memo(Generic[T]):
    """Values by key, the least recently used forgotten first; equal requests at one time share one."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._values: OrderedDict[str, T] = OrderedDict()
        self._in_flight: WeakValueDictionary[str, _InFlight[T]] = WeakValueDictionary()

    async def get(self, text: str, compute: Callable[[], Awaitable[T]]) -> T:
        """Return the value for a text. What `compute` raises is not remembered: the next call tries again."""
        key = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()
        shared = self._in_flight.setdefault(key, _InFlight())
        async with shared.lock:
            if not shared.values:
                shared.values.append(self._values.pop(key) if key in self._values else await compute())
            self._values[key] = shared.values[0]
            while len(self._values) > self._size:
                self._values.popitem(last=False)
            return shared.values[0]
