"""An event loop in a thread of its own, for programs that call `asyncio.run` once per request.

What lives in the loop (a provider, a sandbox, its sessions) stays usable from one call to the next.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import Future
from typing import Any, TypeVar

T = TypeVar("T")


class LoopThread:
    """The thread ends with `stop`, or with the process."""

    def __init__(self, name: str) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name=name, daemon=True)
        self._thread.start()

    async def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Await `work` in the thread's loop; a cancellation is passed on to it."""
        return await asyncio.wrap_future(self.start(work))

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start `work` in the thread's loop; cancelling the future cancels it."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def stop(self) -> None:
        """End the loop and its threads, and wait for them; nothing should run in it any more."""
        self.start(self._loop.shutdown_asyncgens()).result()
        self.start(self._loop.shutdown_default_executor()).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
