"""The client of the server in one sandbox: one request at a time, each with one answer.

The server is a command of the sandbox that runs as long as the rollout. Code under test may kill it; the
client then starts it again.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
from collections.abc import AsyncGenerator, Generator
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from hone.sandbox.contract import TUNNEL_PATH, ExecResult, Mount, ProviderUnavailable, Sandbox, SandboxLost
from hone.sandbox.owners import private_directory
from hone.utils import processes
from hone.utils.concurrency import cancel_all

IN_SANDBOX = "/srv/hone/debugger"
MOUNTS = (
    Mount(source=Path(__file__).parent / "in_sandbox", target=IN_SANDBOX),
    Mount(source=Path(processes.__file__), target="/srv/hone/processes/hone_processes.py"),
)
START_TIMEOUT_S = 60.0
MARGIN_S = 15.0  # beyond the time that a request may take inside
LIFE_S = 86400.0  # of the server; the episode bounds rollouts
# SWE-bench images keep the interpreter of their repository in a conda environment of this name.
_ACTIVATE = 'PATH="/opt/miniconda3/envs/testbed/bin:$PATH"; exec "$@"'
_COMMAND = ["bash", "-c", _ACTIVATE, "bash", "python3", "-I", "-B", f"{IN_SANDBOX}/hone_debug_server.py"]
SECRET_BYTES = 64
SECRET_TIMEOUT_S = 20.0
MESSAGE_MAX = 8 << 20  # bytes


class ServerLost(Exception):
    """The server did not answer and was started again; the programs that it ran are gone."""


class Client:
    """Sends requests in order; `ask` must return before the next call of it."""

    def __init__(self, sandbox: Sandbox, listener: Listener) -> None:
        self._sandbox, self._listener = sandbox, listener
        self._server = AsyncExitStack()
        self._running: asyncio.Task[ExecResult] | None = None
        self._connection: Connection | None = None
        self._requests = 0

    async def ask(self, operation: str, timeout_s: float, /, **arguments: Any) -> dict[str, Any]:
        """Return the server's answer. Raises ServerLost after a restart, SandboxLost if that fails."""
        self._requests += 1
        assert self._running is not None
        assert self._connection is not None
        answering = asyncio.create_task(self._answer(self._connection, operation, arguments))
        try:
            async with asyncio.timeout(timeout_s + MARGIN_S):
                await asyncio.wait({answering, self._running}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    return answering.result()
                reason = self._running.result().ending  # raises what its sandbox raised
        except ConnectionBroken as error:
            reason = str(error)
        except TimeoutError:
            reason = f"it did not answer within {timeout_s + MARGIN_S:.0f} s"
        finally:
            await cancel_all([answering])
        await self._restart(reason)
        raise ServerLost(reason)

    async def _answer(
        self, connection: Connection, operation: str, arguments: dict[str, Any]
    ) -> dict[str, Any]:
        await connection.send({"id": self._requests, "op": operation, "arguments": arguments})
        answer = await connection.receive()
        if answer.get("id") != self._requests:
            raise ConnectionBroken("it sent an answer without a request")
        return answer

    async def start(self) -> None:
        """Start the server. Raises SandboxLost, and ProviderUnavailable if it does not connect."""
        async with AsyncExitStack() as stack:
            secret, connected = stack.enter_context(self._listener.expect())
            job = {"tunnel": TUNNEL_PATH, "secret": secret, "workdir": self._sandbox.spec.workdir}
            running = asyncio.create_task(
                self._sandbox.exec(_COMMAND, stdin=json.dumps(job).encode(), timeout_s=LIFE_S)
            )
            stack.push_async_callback(cancel_all, [running])  # the next use of a lost sandbox reports it
            done, _ = await asyncio.wait(
                {connected, running}, timeout=START_TIMEOUT_S, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise ProviderUnavailable(
                    f"the debugger did not start in the sandbox within {START_TIMEOUT_S:.0f} s",
                    retryable=True,
                )
            if not connected.done():
                raise ProviderUnavailable(
                    f"the debugger cannot be started in the sandbox: {running.result().ending}",
                    retryable=False,
                )
            self._running, self._connection = running, connected.result()
            self._server = stack.pop_all()

    async def _restart(self, reason: str) -> None:
        await self.close()
        try:
            await self.start()
        except ProviderUnavailable as error:  # it started before, so the agent has broken the sandbox
            raise SandboxLost(
                f"the debugger was lost ({reason}) and does not start again: {error}"
            ) from error

    async def close(self) -> None:
        await self._server.aclose()


@asynccontextmanager
async def open_client(sandbox: Sandbox, listener: Listener) -> AsyncGenerator[Client]:
    """Run a server in `sandbox` while the context is open. Raises SandboxLost and ProviderUnavailable."""
    client = Client(sandbox, listener)
    try:
        await client.start()
        yield client
    finally:
        await client.close()


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
    """Matches the servers that connect to a run's unix socket with rollouts, by their secrets.

    Code under test can connect too: a connection that does not send an expected secret in time is closed, and
    a secret is valid once.
    """

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
            await cancel_all(accepting)
