"""Commands over HTTP: one reply at the end, or output in lines while they run."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Coroutine
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hone.sandbox.contract import ExecResult, OnOutput, Sandbox, Stream, TooLarge
from hone.sandbox.node.metrics import Metrics
from hone.sandbox.remote.errors import to_body
from hone.sandbox.remote.wire import ExecReply, ExecRequest, OutputLine
from hone.utils.http_server import while_connected

BUFFER_MAX = 64 << 20  # bytes of output kept for a slow client; beyond, the command is cancelled
SEND_S = 60.0  # a client that reads nothing for so long is disconnected
_LINE_COST = 1 << 10  # bytes of memory of a line of output, beside its data

_log = logging.getLogger(__name__)


async def run(
    sandbox: Sandbox, payload: ExecRequest, metrics: Metrics, on_output: OnOutput | None = None
) -> ExecReply:
    """Run a command and count it. Raises SandboxLost, ValueError."""
    result = await sandbox.exec(**payload.model_dump(exclude={"stream"}), on_output=on_output)
    observe(metrics, result)
    return ExecReply(**asdict(result))


def observe(metrics: Metrics, result: ExecResult) -> None:
    metrics.exec_seconds.observe(result.seconds)
    metrics.output_bytes.inc(result.stdout_bytes + result.stderr_bytes)


class ExecStream(Response):
    """A command's output as NDJSON while it runs, then its ExecReply or ErrorBody."""

    media_type = "application/x-ndjson"

    def __init__(self, start: Callable[[OnOutput], Coroutine[Any, Any, ExecReply]]) -> None:
        super().__init__()
        del self.headers["content-length"]
        self._start = start
        self._waiting: asyncio.Queue[OutputLine | None] = asyncio.Queue()  # None: the command has ended
        self._buffered = 0  # bytes in `_waiting`

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": self.raw_headers})
        with contextlib.suppress(ClientDisconnect, TimeoutError):  # the client disconnected, or reads nothing
            await while_connected(receive, self._run(send))

    async def _run(self, send: Send) -> None:
        running = asyncio.create_task(self._start(lambda *output: self._on_output(running, *output)))
        running.add_done_callback(lambda _: self._waiting.put_nowait(None))
        try:
            while (line := await self._waiting.get()) is not None:
                await self._send(send, line, more=True)
                self._buffered -= len(line.data) + _LINE_COST
        finally:
            running.cancel()
            await asyncio.wait({running})
        await self._send(send, self._end(running), more=False)

    def _end(self, running: asyncio.Task[ExecReply]) -> BaseModel:
        if running.cancelled():
            late = TooLarge(f"the client fell {BUFFER_MAX >> 20} MiB of output behind")
            return to_body(late)[1]
        if (error := running.exception()) is None:
            return running.result()
        body = to_body(error)[1]
        if body.code == "internal":
            _log.error("a command failed unexpectedly", exc_info=error)
        return body

    def _on_output(self, running: asyncio.Task[ExecReply], stream: Stream, data: bytes) -> None:
        if self._buffered > BUFFER_MAX:
            running.cancel()
            return
        self._waiting.put_nowait(OutputLine(stream=stream, data=data))
        self._buffered += len(data) + _LINE_COST

    async def _send(self, send: Send, line: BaseModel, *, more: bool) -> None:
        async with asyncio.timeout(SEND_S):
            await send(
                {
                    "type": "http.response.body",
                    "body": line.model_dump_json().encode() + b"\n",
                    "more_body": more,
                }
            )
