"""The node's end of tunnels: a unix socket for each sandbox that has one (see `hone.sandbox.remote.tunnel`).

The provider mounts the socket into the sandbox like any service of this machine.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator
from pathlib import Path

from starlette.types import Message
from starlette.websockets import WebSocket, WebSocketDisconnect

from hone.sandbox.network import serve_unix
from hone.sandbox.remote.tunnel import OPEN, relay

ATTACH_S = 20.0  # how long a connection waits for an idle WebSocket


class _Line:
    """A WebSocket of the client. `first` is done early only when the client leaves while it is idle."""

    def __init__(self, websocket: WebSocket) -> None:
        self._websocket = websocket
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.first = asyncio.create_task(websocket.receive())
        self._pending: asyncio.Task[Message] | None = self.first

    async def open(self) -> None:
        with _closed_as_os_error():
            await self._websocket.send_text(OPEN)

    async def send(self, data: bytes) -> None:
        with _closed_as_os_error():
            await self._websocket.send_bytes(data)

    async def receive(self) -> bytes:
        pending, self._pending = self._pending, None
        message = await (pending or self._websocket.receive())
        data = message.get("bytes")
        if data is None:
            raise ConnectionResetError("the client closed the connection")
        return data

    def end(self) -> None:
        if not self.ended.done():
            self.ended.set_result(None)


class NodeTunnel:
    """The tunnel of one sandbox. `path` is the socket for its provider.

    Invariant: at most one WebSocket is idle. The client opens another one only when the last one was used or
    broke, so a new one replaces the old one.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._serving = contextlib.AsyncExitStack()
        self._idle: _Line | None = None
        self._attached = asyncio.Event()
        self._turn = asyncio.Lock()  # connections take idle WebSockets in the order of their arrival
        self._closed = False

    async def open(self) -> None:
        """Listen on the socket."""
        await self._serving.enter_async_context(serve_unix(self.path, self._carry))

    async def attach(self, websocket: WebSocket) -> None:
        """Offer a WebSocket to the next connection; return when that has ended, or the client has left."""
        line = _Line(websocket)
        if self._idle is not None:
            self._idle.end()
        if self._closed:
            line.end()
        self._idle = line
        self._attached.set()
        try:
            await asyncio.wait({line.first, line.ended}, return_when=asyncio.FIRST_COMPLETED)
            if self._idle is line:
                self._idle = None
            else:
                await line.ended
        finally:
            line.first.cancel()
            await asyncio.wait({line.first})

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry a connection from inside. Raises TimeoutError without a client, OSError when it has left."""
        async with asyncio.timeout(ATTACH_S):
            line = await self._take_idle()
        try:
            await line.open()
            await relay(reader, writer, line.send, line.receive)
        finally:
            line.end()

    async def _take_idle(self) -> _Line:
        async with self._turn:
            while self._idle is None:
                self._attached.clear()
                await self._attached.wait()
            line, self._idle = self._idle, None
            return line

    async def close(self) -> None:
        """Remove the socket, and end every connection and WebSocket."""
        self._closed = True
        if self._idle is not None:
            self._idle.end()
        await self._serving.aclose()


@contextlib.contextmanager
def _closed_as_os_error() -> Generator[None]:
    try:
        yield
    except (WebSocketDisconnect, RuntimeError) as error:  # the latter when it was closed from here
        raise ConnectionResetError("the client closed the connection") from error
