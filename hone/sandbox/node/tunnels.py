"""The node's end of tunnels: one socket for each sandbox that has one, joined to the client that holds it.

The provider shows the socket inside as it shows any service of this machine. What connects before the client
has attached, or while it attaches again after its line broke, waits for it; a line that breaks ends the
connections that it carried.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

from hone.sandbox.remote.tunnel import CONNECTIONS_MAX, Multiplexer

ATTACH_S = 20.0  # that a connection waits for the client


class NodeTunnel:
    """The tunnel of one sandbox. `path` is the service that its provider is given."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._numbers = itertools.count(1)
        self._line: Multiplexer | None = None
        self._attached = asyncio.Event()
        self._closed = asyncio.Event()
        self._attaching: asyncio.Task[None] | None = None
        self._joining: set[asyncio.Task[None]] = set()

    async def attach(self, send: Callable[[bytes], Awaitable[None]], frames: AsyncIterator[bytes]) -> None:
        """Carry connections over this line, in place of the one before, until it or the tunnel ends.

        Raises ProtocolBroken.
        """
        if self._attaching is not None:
            self._attaching.cancel()
            await asyncio.wait({self._attaching})
        if self._closed.is_set():
            return
        self._attaching = asyncio.create_task(self._read(Multiplexer(send), frames))
        closing = asyncio.create_task(self._closed.wait())
        attaching = self._attaching
        try:
            await asyncio.wait({attaching, closing}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            attaching.cancel()
            closing.cancel()
            await asyncio.wait({attaching, closing})
        if not attaching.cancelled():
            attaching.result()

    async def _read(self, line: Multiplexer, frames: AsyncIterator[bytes]) -> None:
        self._line = line
        self._attached.set()
        try:
            async for frame in frames:
                line.take(frame)
        finally:
            if self._line is line:
                self._attached.clear()
                self._line = None
            line.end()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """A connection from inside."""
        if len(self._joining) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.create_task(self._join(reader, writer))
        self._joining.add(task)
        task.add_done_callback(self._joining.discard)

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(ATTACH_S):
                await self._attached.wait()
            line = self._line
            if line is None or line.full:
                return
            joined = line.begin(next(self._numbers))
            await line.open(joined)
            await line.carry(joined, reader, writer)
        except (TimeoutError, OSError):
            return  # nobody attached, or the line broke: closed below
        finally:
            writer.close()

    async def close(self) -> None:
        """End every connection, and the line that carries them."""
        self._closed.set()
        for task in self._joining:
            task.cancel()
        await asyncio.gather(*self._joining, return_exceptions=True)


@asynccontextmanager
async def open_tunnel(directory: Path, name: str) -> AsyncGenerator[NodeTunnel]:
    """Listen on a socket in `directory` while the context is open.

    Its path names the directory by a descriptor of this process: an address holds 107 bytes at most.
    """
    with contextlib.ExitStack() as stack:
        folder = os.open(directory, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, folder)
        tunnel = NodeTunnel(Path(f"/proc/self/fd/{folder}/{name}"))
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tunnel.path))
        stack.callback(lambda: (directory / name).unlink(missing_ok=True))
        server = await asyncio.start_unix_server(tunnel.accept, sock=listener)
        try:
            yield tunnel
        finally:
            server.close()
            await tunnel.close()
