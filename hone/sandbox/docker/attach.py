"""The attach stream of a container, demultiplexed for a channel.

The engine upgrades an HTTP request. Then it sends each piece of output after a header (stream, three zero
bytes, length); bytes written to the connection become the container's standard input.
"""

from __future__ import annotations

import asyncio
import struct
from typing import cast

from hone.sandbox.init.channel import Channel

_HEADER = struct.Struct("!BxxxI")  # stream (1: stdout, 2: stderr), length
_STDOUT, _STDERR = 1, 2
_HEAD_MAX = 1 << 16  # bytes of the answer's header
_ERRORS_MAX = 4000  # bytes kept of standard error


class AttachRefused(Exception):
    """The engine refused to attach to this container; holds its message."""


class AttachStream(asyncio.Protocol):
    """Send `request`; pass the upgraded connection to the channel as its transport.

    `upgraded` raises AttachRefused, or OSError when the engine disconnects first.
    """

    def __init__(self, request: bytes, channel: Channel) -> None:
        self.upgraded: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.errors = bytearray()  # the end of standard error
        self._request = request
        self._channel = channel
        self._head: bytearray | None = bytearray()  # of the response; None once it is complete
        self._pending = b""  # an incomplete header
        self._stream, self._left = 0, 0  # of the piece that is arriving

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's class is not a subclass
        self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        if self._head is not None:
            self._head += data
            head, end, data = bytes(self._head).partition(b"\r\n\r\n")
            if not end and len(head) < _HEAD_MAX:
                return
            self._head = None
            if head.split(b" ", 2)[1:2] not in ([b"101"], [b"200"]):
                message = (head + data).decode("utf-8", "replace")
                self._fail(AttachRefused(message[-_ERRORS_MAX:]))
                return
            self._channel.connection_made(self._transport)
            if not self.upgraded.done():
                self.upgraded.set_result(None)
        self._demultiplex(data)

    def _demultiplex(self, data: bytes) -> None:
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
        """Close the connection."""
        self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        self._fail(exc or ConnectionResetError("the engine closed the connection"))
        self._channel.connection_lost(exc)

    def _fail(self, error: Exception) -> None:
        if not self.upgraded.done():
            self.upgraded.set_exception(error)
            self.upgraded.exception()  # mark it as retrieved, in case the waiter was cancelled
        self.abort()
