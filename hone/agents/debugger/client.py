"""The client of the server in one sandbox: one request at a time, each with one answer.

The server is a command of the sandbox that runs as long as the rollout. Code under test may kill it; the
client then starts it again.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hone.agents.debugger.listener import Connection, ConnectionBroken, Listener
from hone.sandbox.contract import TUNNEL_PATH, ExecResult, Mount, ProviderUnavailable, Sandbox, SandboxLost
from hone.utils import processes

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
                reason = _exit_reason(self._running)
        except ConnectionBroken as error:
            reason = str(error)
        except TimeoutError:
            reason = f"it did not answer within {timeout_s + MARGIN_S:.0f} s"
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
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
            stack.push_async_callback(_cancel, running)
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
                    f"the debugger cannot be started in the sandbox: {_exit_reason(running)}", retryable=False
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


async def _cancel(running: asyncio.Task[ExecResult]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)  # the next use of a lost sandbox reports it


def _exit_reason(running: asyncio.Task[ExecResult]) -> str:
    """Return how a server ended. Raises what its sandbox raised."""
    result = running.result()
    stderr = result.stderr[-300:].decode("utf-8", "replace").strip()
    return f"it ended with exit code {result.exit_code}{': ' + stderr if stderr else ''}"
