"""The unix socket that the servers inside a run's sandboxes connect to; each authenticates by a secret.

Code under test can connect too: a connection that does not send an expected secret in time is closed, and a
secret is valid once.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from hone.sandbox.owners import private_directory

SECRET_BYTES = 64
SECRET_TIMEOUT_S = 20.0
MESSAGE_MAX = 8 << 20  # bytes


class ConnectionBroken(Exception):
    """The other end hung up, or sent something that is not a JSON object."""


class Connection:
    """The connection of one server: a JSON object per line, both ways."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    async def send(self, message: dict[str, Any]) -> None:
        """Raises ConnectionBroken."""
        line = json.dumps(message).encode() + b"\n"
        if len(line) > MESSAGE_MAX:
            raise ValueError(f"the request has {len(line)} bytes; the limit is {MESSAGE_MAX}")
        try:
            self._writer.write(line)
            await self._writer.drain()
        except OSError as error:
            raise ConnectionBroken(f"it hung up: {error}") from error

    async def receive(self) -> dict[str, Any]:
        """Return the next message, with text that UTF-8 can encode. Raises ConnectionBroken."""
        try:
            message = json.loads(await self._reader.readuntil(b"\n"))
            message = json.loads(json.dumps(message, ensure_ascii=False).encode("utf-8", "replace"))
        except asyncio.LimitOverrunError:
            raise ConnectionBroken(f"it sent a message of more than {MESSAGE_MAX} bytes") from None
        except (OSError, asyncio.IncompleteReadError) as error:
            raise ConnectionBroken("it hung up") from error
        except (ValueError, RecursionError) as error:
            raise ConnectionBroken(f"it sent invalid JSON: {error}") from None
        if not isinstance(message, dict):
            raise ConnectionBroken("it sent JSON that is not an object")
        return message

    async def receive_secret(self) -> str:
        """Return the first bytes that were sent; "" when they do not arrive in time."""
        try:
            async with asyncio.timeout(SECRET_TIMEOUT_S):
                return (await self._reader.readexactly(SECRET_BYTES)).decode("ascii", "replace")
        except (OSError, asyncio.IncompleteReadError, TimeoutError):
            return ""

    def close(self) -> None:
        self._writer.close()


class Listener:
    """Matches connections with rollouts by their secrets."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._expected: dict[str, asyncio.Future[Connection]] = {}

    @contextmanager
    def expect(self) -> Generator[tuple[str, asyncio.Future[Connection]]]:
        """Yield a new secret and the future of its connection; the exit closes the connection."""
        secret = secrets.token_hex(SECRET_BYTES // 2)
        connected = self._expected[secret] = asyncio.get_running_loop().create_future()
        try:
            yield secret, connected
        finally:
            self._expected.pop(secret, None)
            if connected.done() and not connected.cancelled():
                connected.result().close()
            connected.cancel()

    async def accept(self, connection: Connection) -> None:
        """Hand a connection to the rollout whose secret it sends, or close it."""
        expected = None
        try:
            expected = self._expected.pop(await connection.receive_secret(), None)
        finally:
            if expected is None:
                connection.close()
        if expected is not None:
            expected.set_result(connection)


@asynccontextmanager
async def open_listener() -> AsyncGenerator[Listener]:
    """Listen on a socket in a private directory while the context is open.

    The path names that directory by a descriptor of this process: a socket's address has at most 107 bytes.
    """
    accepting: set[asyncio.Task[None]] = set()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(listener.accept(Connection(reader, writer)))
        accepting.add(task)
        task.add_done_callback(accepting.discard)

    with ExitStack() as stack:
        directory = os.open(stack.enter_context(private_directory()), os.O_PATH | os.O_DIRECTORY)
        stack.callback(os.close, directory)
        listener = Listener(Path(f"/proc/self/fd/{directory}/debugger"))
        server = await asyncio.start_unix_server(accept, listener.path, limit=MESSAGE_MAX)
        try:
            yield listener
        finally:
            server.close()
            for task in accepting:
                task.cancel()
            await asyncio.gather(*accepting, return_exceptions=True)
