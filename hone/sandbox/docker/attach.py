"""The attach stream of a container, taken apart into what a channel receives.

The engine answers an upgraded HTTP request and then sends, per piece of output, a header (stream, three zero
bytes, length) and the piece; what is written to the connection becomes the container's standard input.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

from hone.sandbox.init.channel import Channel

_HEADER = struct.Struct("!BxxxI")  # stream (1: stdout, 2: stderr), length
_STDOUT, _STDERR = 1, 2
_HEAD_MAX = 1 << 16  # bytes of the answer's header
_ERRORS_MAX = 4000  # bytes kept of the supervisor's standard error


class AttachRefused(Exception):
    """The engine does not attach to this container; holds what it said."""


class AttachStream(asyncio.Protocol):
    """Sends `request`; once the engine has upgraded the connection, the channel has it as its transport.

    `upgraded` raises AttachRefused, or an OSError when the engine hangs up first.
    """

    def __init__(self, request: bytes, channel: Channel) -> None:
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors = bytearray()  # the end of what the supervisor wrote to its standard error
        self._request = request
        self._channel = channel
        self._head: bytearray | None = bytearray()  # None once it was answered
        self._pending = b""  # an incomplete header
        self._stream, self._left = 0, 0  # of the piece that is arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # what uvloop gives inherits from less
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, end, data = bytes(self._head).partition(b"\r\n\r\n")
            if not end and len(head) < _HEAD_MAX:
                return
            self._head = None
            if head.split(b" ", 2)[1:2] not in ([b"101"], [b"200"]):
                said = (head + data).decode("utf-8", "replace")
                self._refuse(AttachRefused(said[-_ERRORS_MAX:]))
                return
            self._channel.connection_made(self._transport)
            if not self.upgraded.done():
                self.upgraded.set_result(None)
        self._take_apart(data)

    def _take_apart(self, data: bytes) -> None:
        data = self._pending + data
        offset = 0
        while offset < len(data):
            if self._left == 0:
                if len(data) - offset < _HEADER.size:
                    break
                self._stream, self._left = _HEADER.unpack_from(data, offset)
                offset += _HEADER.size
                continue
            piece = data[offset : offset + self._left]
            offset += len(piece)
            self._left -= len(piece)
            if self._stream == _STDOUT:
                self._channel.data_received(piece)
            elif self._stream == _STDERR:
                self.errors += piece
                del self.errors[:-_ERRORS_MAX]
        self._pending = data[offset:]

    def abort(self) -> None:
        """Hang up."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._refuse(exc or ConnectionResetError("the engine hung up"))
        self._channel.connection_lost(exc)

    def _refuse(self, why: Exception) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(why)
            self.upgraded.exception()  # a waiter that was cancelled meanwhile will not look at it
        self.abort()
