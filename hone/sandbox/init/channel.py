"""The host's end of a sandbox's channel: sends requests and matches replies to them by number.

Replies are not trusted: frames are bounded, and a malformed one ends the sandbox.
"""

from __future__ import annotations

import asyncio
import os
from typing import cast

from hone.sandbox.contract import OnOutput, SandboxError, SandboxLost
from hone.sandbox.init.in_sandbox import wire

_FRAME_MAX = 32 << 20  # bytes; the largest valid reply lists a directory
_ERRNO_MAX = 4095  # the kernel gives no larger one


BROKEN = "its process 1 broke the protocol"


class Channel(asyncio.Protocol):
    """Length-framed requests over a stream socket. `lost` is the reason once it is closed, else ""."""

    def __init__(self) -> None:
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.lost = ""
        self._transport: asyncio.Transport | None = None
        self._pending: dict[int, asyncio.Future[tuple[int, bytes]]] = {}
        self._listeners: dict[int, OnOutput] = {}
        self._incoming = bytearray()
        self._last = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass

    def data_received(self, data: bytes) -> None:
        self._incoming += data
        offset = 0
        while len(self._incoming) - offset >= wire.HEADER.size:
            size, kind, request = wire.HEADER.unpack_from(self._incoming, offset)
            if size > _FRAME_MAX:
                self.abandon(BROKEN)
                return
            start = offset + wire.HEADER.size
            if len(self._incoming) - start < size:
                break
            offset = start + size
            self._deliver(kind, request, bytes(self._incoming[start:offset]))
        del self._incoming[:offset]

    def _deliver(self, kind: int, request: int, body: bytes) -> None:
        if kind == wire.READY_KIND:
            if not self.ready.done():
                self.ready.set_result(None)
            return
        if kind in (wire.STDOUT_KIND, wire.STDERR_KIND):
            if request in self._listeners:
                self._listeners[request]("stdout" if kind == wire.STDOUT_KIND else "stderr", body)
            return
        future = self._pending.pop(request, None)
        if future is not None and not future.done():
            future.set_result((kind, body))

    def connection_lost(self, exc: Exception | None) -> None:
        self.abandon("all its processes were killed")

    def abandon(self, reason: str) -> None:
        """Close the channel; waiting and later requests raise SandboxLost. The first reason is kept."""
        self.lost = self.lost or reason
        if self._transport is not None:
            self._transport.abort()
        waiting = [self.ready, *self._pending.values()]
        self._pending.clear()
        for future in waiting:
            if not future.done():
                future.set_exception(SandboxLost(self.lost))
                future.exception()  # mark it as retrieved, in case the waiter was cancelled

    def open(self) -> int:
        """Return a new request number, for `send` and `reply`. Raises SandboxLost."""
        if self.lost:
            raise SandboxLost(self.lost)
        self._last = (self._last + 1) & 0xFFFFFFFF
        self._pending[self._last] = asyncio.get_running_loop().create_future()
        return self._last

    def listen(self, request: int, on_output: OnOutput) -> None:
        """Call `on_output` with each piece of live output of a request, until its reply."""
        self._listeners[request] = on_output

    def send(self, kind: int, request: int, *parts: bytes) -> None:
        if self._transport is not None and not self.lost:
            header = wire.HEADER.pack(sum(map(len, parts)), kind, request)
            self._transport.writelines([header, *parts])

    async def reply(self, request: int, timeout_s: float) -> tuple[int, bytes]:
        """Wait for the reply. A sandbox that does not answer in time is ended: raises SandboxLost."""
        future = self._pending[request]
        try:
            async with asyncio.timeout(timeout_s):
                return await future
        except TimeoutError:
            self.abandon(f"it did not answer within {timeout_s:.0f} s")
            raise SandboxLost(self.lost) from None
        finally:
            self._pending.pop(request, None)
            self._listeners.pop(request, None)

    async def ask(self, kind: int, *parts: bytes, timeout_s: float = 60.0) -> bytes:
        """Send one file request and return its reply. Raises the OSError of the sandbox."""
        request = self.open()
        self.send(kind, request, *parts)
        reply, body = await self.reply(request, timeout_s)
        if reply == wire.ERROR_KIND and len(body) == wire.LENGTH.size:
            (number,) = wire.LENGTH.unpack(body)
            if number <= _ERRNO_MAX:
                raise OSError(number, os.strerror(number))
        if reply != wire.DATA_KIND:
            self.abandon(BROKEN)
            raise SandboxError(self.lost)
        return body
