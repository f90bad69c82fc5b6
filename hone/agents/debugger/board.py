"""Where the servers inside the sandboxes of a run dial in: one unix socket, told apart by secrets.

What comes in was sent from a sandbox, and maybe by the program under test: a connection that does not say a
secret that is awaited, in time and in few bytes, is closed; a secret serves once.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import struct
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from hone.sandbox import owners

HELLO_S = 20.0
HELLO_MAX, FRAME_MAX = 4 << 10, 8 << 20  # bytes
_HEADER = struct.Struct("!I")


class LineBroken(Exception):
    """The other end hung up, or what it sent is no answer."""


class Line:
    """One server's connection: framed JSON, both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: dict[str, Any]) -> None:
        """Raises LineBroken."""
        body = json.dumps(message).encode()
        if len(body) > FRAME_MAX:
            raise ValueError(f"a request of {len(body)} bytes is longer than a frame may be")
        try:
            self._writer.write(_HEADER.pack(len(body)) + body)
            await self._writer.drain()
        except OSError as error:
            raise LineBroken(f"it hung up: {error}") from error

    async def receive(self, limit: int = FRAME_MAX) -> dict[str, Any]:
        """Raises LineBroken."""
        try:
            (size,) = _HEADER.unpack(await self._reader.readexactly(_HEADER.size))
            if size > limit:
                raise LineBroken(f"it sent a frame of {size} bytes")
            message = json.loads(await self._reader.readexactly(size))
        except (OSError, asyncio.IncompleteReadError) as error:
            raise LineBroken("it hung up") from error
        except (ValueError, RecursionError) as error:
            raise LineBroken(f"it sent what is no JSON: {error}") from None
        if not isinstance(message, dict):
            raise LineBroken("it sent JSON that is no object")
        return message

    def close(self) -> None:
        self._writer.close()


class Switchboard:
    """Joins each rollout with the server that says its secret."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._awaited: dict[str, asyncio.Future[Line]] = {}

    @contextmanager
    def awaiting(self) -> Generator[tuple[str, asyncio.Future[Line]]]:
        """A new secret, and the future of the line that says it; both are void at the end."""
        secret = secrets.token_hex(32)
        line = self._awaited[secret] = asyncio.get_running_loop().create_future()
        try:
            yield secret, line
        finally:
            self._awaited.pop(secret, None)
            if line.done() and not line.cancelled():
                line.result().close()
            line.cancel()

    async def greet(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Give a connection to whom it is for, or close it."""
        line = Line(reader, writer)
        awaited = None
        try:
            async with asyncio.timeout(HELLO_S):
                hello = await line.receive(HELLO_MAX)
            awaited = self._awaited.pop(str(hello.get("secret")), None)
        except (LineBroken, TimeoutError):
            return
        finally:
            if awaited is None:
                line.close()
        if awaited is not None:
            awaited.set_result(line)


@asynccontextmanager
async def open_switchboard() -> AsyncGenerator[Switchboard]:
    """Listen on a socket in a directory of this user alone, while the context is open.

    It lies below the state directory: if this process is killed, the next provider that opens removes it. Its
    path names that directory by a descriptor of this process: an address holds 107 bytes at most.
    """
    greeting: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(board.greet(reader, writer))
        greeting.add(task)
        task.add_done_callback(greeting.discard)

    with ExitStack() as stack:
        folder = stack.enter_context(owners.private_directory())
        directory = os.open(folder, os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, directory)
        board = Switchboard(Path(f"/proc/self/fd/{directory}/debugger"))
        server = await asyncio.start_unix_server(accept, board.path)
        try:
            yield board
        finally:
            server.close()
            for task in greeting:
                task.cancel()
            await asyncio.gather(*greeting, return_exceptions=True)
