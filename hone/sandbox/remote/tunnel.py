"""Many connections over one: the tunnel of a sandbox on another machine, between its node and its client.

    program inside -> node's socket -> Multiplexer == WebSocket == Multiplexer -> client's service

A frame is `HEADER` (kind, number of the connection) and its body. Each direction of each connection has a
window: so many bytes may be under way that the other end has not passed on yet. So one connection that is not
read holds up no other, and neither end keeps more than `CONNECTIONS_MAX * WINDOW` bytes.
"""

from __future__ import annotations

import asyncio
import contextlib
import struct
from collections import deque
from collections.abc import Awaitable, Callable

HEADER = struct.Struct("!BI")
CREDIT = struct.Struct("!I")  # the body of a CREDITED frame: bytes that were passed on
OPENED, DATA, ENDED, RESET, CREDITED = range(1, 6)
CONNECTIONS_MAX = 64  # of one sandbox at a time
WINDOW = 256 << 10  # bytes
PIECE = 32 << 10  # bytes of one DATA frame, at most
FRAME_MAX = HEADER.size + PIECE


class ProtocolBroken(Exception):
    """The other end sent what no Multiplexer sends; nothing after it can be trusted."""


class Joined:
    """One connection, as one end of the tunnel keeps it."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.waiting: deque[bytes] = deque()  # to be passed on here; b"" is the end
        self.held = 0  # bytes of them, and of those that are being passed on
        self.credit = WINDOW  # bytes that may still be sent
        self.ended = self.broken = False
        self.news = asyncio.Event()  # something above changed


class Multiplexer:
    """One end. `take` reads what the other end sent and never waits; `carry` moves one connection's bytes."""

    def __init__(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """`send` puts one frame on its way, waiting while the other end is slow; raises OSError."""
        self._send = send
        self._joined: dict[int, Joined] = {}
        self._over = False

    def begin(self, number: int) -> Joined:
        """Raises ProtocolBroken for a number that is in use, and when there are too many."""
        if number in self._joined or len(self._joined) >= CONNECTIONS_MAX:
            raise ProtocolBroken(f"connection {number} is one too many")
        joined = self._joined[number] = Joined(number)
        if self._over:
            self._break(joined)
        return joined

    @property
    def full(self) -> bool:
        return len(self._joined) >= CONNECTIONS_MAX

    def take(self, frame: bytes) -> Joined | None:
        """Take in a frame; returns a connection that the other end opened. Raises ProtocolBroken.

        A frame of a connection that is over here may still have been under way, and is dropped.
        """
        if not HEADER.size <= len(frame) <= FRAME_MAX:
            raise ProtocolBroken(f"a frame of {len(frame)} bytes")
        kind, number = HEADER.unpack_from(frame)
        if kind == OPENED:
            return self.begin(number)
        body, joined = frame[HEADER.size :], self._joined.get(number)
        if joined is not None:
            self._apply(kind, body, joined)
            joined.news.set()
        return None

    def _apply(self, kind: int, body: bytes, joined: Joined) -> None:
        if kind == DATA:
            joined.held += len(body)
            if joined.ended or not body or joined.held > WINDOW:
                raise ProtocolBroken(f"connection {joined.number} sent more than it may")
            joined.waiting.append(body)
        elif kind == ENDED:
            joined.ended = True
            joined.waiting.append(b"")
        elif kind == CREDITED and len(body) == CREDIT.size:
            joined.credit += CREDIT.unpack(body)[0]
            if joined.credit > WINDOW:
                raise ProtocolBroken(f"connection {joined.number} was credited more than it sent")
        elif kind == RESET:
            self._break(joined)
        else:
            raise ProtocolBroken(f"a frame of kind {kind}")

    async def carry(self, joined: Joined, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Move bytes both ways until both directions have ended, or one breaks off."""
        try:
            async with asyncio.TaskGroup() as group:
                watching = group.create_task(self._until(joined, lambda: False))
                moving = {
                    group.create_task(self._outwards(joined, reader)),
                    group.create_task(self._inwards(joined, writer)),
                }
                await asyncio.wait(moving)
                watching.cancel()
        except* OSError:
            writer.transport.abort()
            await self.reset(joined)
        finally:
            self._joined.pop(joined.number, None)
            writer.close()

    async def open(self, joined: Joined) -> None:
        """Tell the other end of a new connection. Raises OSError."""
        await self._send(HEADER.pack(OPENED, joined.number))

    async def reset(self, joined: Joined) -> None:
        """Break a connection off, and tell the other end unless that did it."""
        known = joined.broken
        self._break(joined)
        self._joined.pop(joined.number, None)
        if not known:
            with contextlib.suppress(OSError):  # the tunnel is gone, and with it every connection
                await self._send(HEADER.pack(RESET, joined.number))

    def end(self) -> None:
        """The tunnel is gone: every connection breaks off, those that begin from now on too."""
        self._over = True
        for joined in self._joined.values():
            self._break(joined)

    def _break(self, joined: Joined) -> None:
        joined.broken = True
        joined.news.set()

    async def _outwards(self, joined: Joined, reader: asyncio.StreamReader) -> None:
        while True:
            await self._until(joined, lambda: joined.credit > 0)
            data = await reader.read(min(PIECE, joined.credit))
            if not data:
                await self._send(HEADER.pack(ENDED, joined.number))
                return
            joined.credit -= len(data)
            await self._send(HEADER.pack(DATA, joined.number) + data)

    async def _inwards(self, joined: Joined, writer: asyncio.StreamWriter) -> None:
        while True:
            await self._until(joined, lambda: bool(joined.waiting))
            data = joined.waiting.popleft()
            if not data:
                writer.write_eof()
                return
            writer.write(data)
            await writer.drain()
            joined.held -= len(data)
            await self._send(HEADER.pack(CREDITED, joined.number) + CREDIT.pack(len(data)))

    async def _until(self, joined: Joined, true: Callable[[], bool]) -> None:
        """Raises ConnectionResetError when the connection breaks off."""
        while not true():
            if joined.broken:
                raise ConnectionResetError("the other end of the tunnel broke the connection off")
            joined.news.clear()
            await joined.news.wait()
