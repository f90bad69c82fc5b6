"""The memory of all large bodies of requests together, in all servers of this process."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque

from starlette.requests import Request
from starlette.types import ASGIApp, Receive, Scope, Send

MEMORY_MAX = 128 << 20  # bytes of large bodies at a time
LARGE = 1 << 16  # bytes
WAIT_S = 60.0  # the longest that a large body waits for memory
_HELD = "hone.body_bytes"  # key of a scope: the bytes of memory that a request holds


class ServerBusy(Exception):
    """The server does as much as it can; a retry may help."""


class MemoryBudget:
    """Bytes of memory, given out in the order of requests. One larger than all of it gets all of it."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.used = 0
        self._waiting: deque[tuple[int, asyncio.Future[None]]] = deque()

    async def take(self, size: int) -> int:
        """Wait for `size` bytes; return how many to give back. Raises ServerBusy after WAIT_S."""
        size = min(size, self.total)
        if self._waiting or self.used + size > self.total:
            turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.append((size, turn))
            try:
                async with asyncio.timeout(WAIT_S):
                    await turn
            except BaseException as error:
                if turn.done() and not turn.cancelled():
                    self.used -= size
                with contextlib.suppress(ValueError):
                    self._waiting.remove((size, turn))
                self._serve()
                if isinstance(error, TimeoutError):
                    raise ServerBusy("too many large requests are running: try again later") from None
                raise
        else:
            self.used += size
        return size

    def give(self, size: int) -> None:
        self.used -= size
        self._serve()

    def _serve(self) -> None:
        while self._waiting and self.used + self._waiting[0][0] <= self.total:
            size, turn = self._waiting.popleft()
            if not turn.done():
                self.used += size
                turn.set_result(None)


_budget = MemoryBudget(MEMORY_MAX)


class ReleaseMemory:
    """ASGI middleware: give the memory of a request's body back when the request has ended."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        scope[_HELD] = 0
        try:
            await self._app(scope, receive, send)
        finally:
            if scope[_HELD]:
                _release(scope)


def _release(scope: Scope) -> None:
    held, scope[_HELD] = scope[_HELD], 0
    if held:
        _budget.give(held)


def release_body(request: Request) -> None:
    """Give the memory of a body back before the request has ended, because nothing of it is kept."""
    if _HELD in request.scope:
        _release(request.scope)


async def hold_memory(request: Request, size: int) -> None:
    """Wait for memory for a body of `size` bytes, until the request ends. Raises ServerBusy."""
    if _HELD in request.scope:
        request.scope[_HELD] += await _budget.take(size)
