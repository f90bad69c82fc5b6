"""The server in one sandbox, and what is asked of it: one request at a time, each with one answer.

The server is a command of the sandbox that runs as long as the rollout; the program under test may kill it,
and it is then started again. What a sandbox can forge here is only what its own agent observes.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

from hone.agents.debugger.board import Line, LineBroken, Switchboard
from hone.sandbox.contract import TUNNEL_PATH, ExecResult, Mount, ProviderUnavailable, Sandbox, SandboxLost

INSIDE = "/srv/hone/debugger"
MOUNT = Mount(source=Path(__file__).parent / "inside", target=INSIDE)
START_S = 60.0  # for the server to dial in
MARGIN_S = 15.0  # beyond what a request may take inside, before the server is given up
LIFE_S = 86400.0  # of the server; rollouts are bounded elsewhere
# Images of SWE-bench keep the interpreter of their repository in a conda environment of this name.
_ACTIVATE = 'PATH="/opt/miniconda3/envs/testbed/bin:$PATH"; exec "$@"'
_COMMAND = ["bash", "-c", _ACTIVATE, "bash", "python3", "-I", "-B", f"{INSIDE}/hone_debug_server.py"]


class ServerLost(Exception):
    """The server did not answer; what it ran is gone with it. It is there again, with nothing running."""


class Console:
    """Answers come in the order of the questions; `ask` may not be called again before it has returned."""

    def __init__(self, sandbox: Sandbox, board: Switchboard) -> None:
        self._sandbox, self._board = sandbox, board
        self._server = AsyncExitStack()
        self._running: asyncio.Task[ExecResult] | None = None
        self._line: Line | None = None
        self._asked = 0

    async def ask(self, operation: str, within_s: float, /, **arguments: Any) -> dict[str, Any]:
        """The server's answer. Raises ServerLost once it serves again, and SandboxLost when it cannot."""
        self._asked += 1
        assert self._running is not None
        assert self._line is not None
        answering = asyncio.create_task(self._answer(self._line, operation, arguments))
        try:
            async with asyncio.timeout(within_s + MARGIN_S):
                await asyncio.wait({answering, self._running}, return_when=asyncio.FIRST_COMPLETED)
                if answering.done():
                    return answering.result()
                why = _ended(self._running)
        except LineBroken as error:
            why = str(error)
        except TimeoutError:
            why = f"it did not answer within {within_s + MARGIN_S:.0f} s"
        finally:
            answering.cancel()
            await asyncio.gather(answering, return_exceptions=True)
        await self._restart(why)
        raise ServerLost(why)

    async def _answer(self, line: Line, operation: str, arguments: dict[str, Any]) -> dict[str, Any]:
        await line.send({"id": self._asked, "op": operation, "arguments": arguments})
        answer = await line.receive()
        if answer.get("id") != self._asked:
            raise LineBroken("it sent what nobody asked for")
        return _printable(answer)

    async def start(self) -> None:
        """Raises SandboxLost, and ProviderUnavailable when the server cannot be started."""
        stack = AsyncExitStack()
        secret, dialling = stack.enter_context(self._board.awaiting())
        job = {"tunnel": TUNNEL_PATH, "secret": secret, "workdir": self._sandbox.spec.workdir}
        running = asyncio.create_task(
            self._sandbox.exec(_COMMAND, stdin=json.dumps(job).encode(), timeout_s=LIFE_S)
        )
        stack.push_async_callback(_cancel, running)
        try:
            async with asyncio.timeout(START_S):
                await asyncio.wait({dialling, running}, return_when=asyncio.FIRST_COMPLETED)
            if not dialling.done():
                raise ProviderUnavailable(
                    f"the debugger cannot be started in the sandbox: {_ended(running)}", retryable=False
                )
        except TimeoutError:
            await stack.aclose()
            raise ProviderUnavailable(
                f"the debugger did not start in the sandbox within {START_S:.0f} s", retryable=True
            ) from None
        except BaseException:
            await stack.aclose()
            raise
        self._server, self._running, self._line = stack, running, dialling.result()

    async def _restart(self, why: str) -> None:
        await self.close()
        try:
            await self.start()
        except ProviderUnavailable as error:  # it served before: whatever is broken was broken by the agent
            raise SandboxLost(f"the debugger was lost ({why}) and does not start again: {error}") from error

    async def close(self) -> None:
        await self._server.aclose()


@asynccontextmanager
async def open_console(sandbox: Sandbox, board: Switchboard) -> AsyncGenerator[Console]:
    """A server in `sandbox` while the context is open. Raises SandboxLost and ProviderUnavailable."""
    console = Console(sandbox, board)
    try:
        await console.start()
        yield console
    finally:
        await console.close()


async def _cancel(running: asyncio.Task[ExecResult]) -> None:
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)  # a lost sandbox shows in the next use of it


def _ended(running: asyncio.Task[ExecResult]) -> str:
    """How a server ended. Raises what its sandbox raised."""
    result = running.result()
    said = result.stderr[-300:].decode("utf-8", "replace").strip()
    return f"it ended with exit code {result.exit_code}{': ' + said if said else ''}"


def _printable(answer: Any) -> Any:
    """The same, with text that UTF-8 can encode."""
    if isinstance(answer, str):
        return answer.encode("utf-8", "replace").decode()
    if isinstance(answer, list):
        return [_printable(item) for item in answer]
    if isinstance(answer, dict):
        return {str(key): _printable(value) for key, value in answer.items()}
    return answer
