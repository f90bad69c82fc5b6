"""Responses: whole replies, and event streams that stay alive while the reply is sampled."""

from __future__ import annotations

import asyncio
from typing import Any

from pydantic_core import to_json
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from hone.policy.gateway.chat_request import ChatRequest
from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire.format import Format
from hone.utils.concurrency import cancel_all
from hone.utils.http_server import wait_for_disconnect

# A stream begins after this many seconds, so that an earlier error still has its own HTTP status. It then
# sends one keep-alive event per period until the reply is there.
KEEP_ALIVE_S = 10.0


def json_response(data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None) -> Response:
    return Response(to_json(data), status, headers, media_type="application/json")


def error_response(wire: Format, error: GatewayError) -> Response:
    # OpenAI's and Anthropic's clients follow this header instead of their own rules.
    retry = {"x-should-retry": "true" if error.status >= 500 else "false"}
    return json_response(wire.error(error), error.status, retry)


async def deliver(wire: Format, session: Session, request: ChatRequest, *, keep_alive_s: float) -> Response:
    """Return the response to a request for a reply. Raises GatewayError."""
    headers = {
        "x-hone-ignored": ", ".join(request.ignored),
        "x-hone-overridden": ", ".join(request.overridden),
    }
    headers = {name: value for name, value in headers.items() if value}
    if request.stream:
        return _EventStream(wire, session, request, headers, keep_alive_s)
    body = to_json(wire.reply(await session.ask(request)))
    drop = session.next_drop()
    headers["content-type"] = "application/json"
    return Response(body, headers=headers) if drop is None else _Truncated(body, headers, drop)


class _Truncated(Response):
    """Send the first `drop` bytes of the body, then cut the connection: a fault that a script injects."""

    def __init__(self, body: bytes, headers: dict[str, str], drop: int) -> None:
        super().__init__(body, headers=headers)
        self._drop = drop

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body)[: self._drop], "more_body": True})


class _EventStream(Response):
    """Server-sent events. An error before the first event is raised, so that it gets its own HTTP status.

    Sampling continues when the client disconnects: the reply is recorded for its retry.
    """

    def __init__(
        self,
        wire: Format,
        session: Session,
        request: ChatRequest,
        headers: dict[str, str],
        keep_alive_s: float,
    ) -> None:
        self.status_code, self.background = 200, None
        self.init_headers(
            {**headers, "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}
        )
        self._wire, self._session, self._request = wire, session, request
        self._keep_alive_s = keep_alive_s
        self._begun = False

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        answer = asyncio.create_task(self._session.ask(self._request))
        leaving = asyncio.create_task(wait_for_disconnect(receive))
        try:
            while not await _first_done(answer, leaving, self._keep_alive_s):
                await self._write(send, self._wire.waiting(self._request))
            if answer.done():
                await self._finish(send, answer)
        finally:
            await cancel_all([answer, leaving])

    async def _finish(self, send: Send, answer: asyncio.Task[Any]) -> None:
        try:
            body = b"".join(self._wire.events(answer.result()))
        except GatewayError as error:
            if not self._begun:
                raise
            body = self._wire.error_event(error)
        drop = self._session.next_drop()
        await self._write(send, body[:drop], last=drop is None)  # without a last part, uvicorn disconnects

    async def _write(self, send: Send, data: bytes, *, last: bool = False) -> None:
        if not self._begun:
            self._begun = True
            await send(
                {"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers}
            )
        await send({"type": "http.response.body", "body": data, "more_body": not last})


async def _first_done(answer: asyncio.Task[Any], leaving: asyncio.Task[None], limit_s: float) -> bool:
    done, _ = await asyncio.wait({answer, leaving}, timeout=limit_s, return_when=asyncio.FIRST_COMPLETED)
    return bool(done)
