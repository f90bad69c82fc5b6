"""Bringing a reply to its client: whole, or as a stream that stays alive while the reply is being sampled."""

from __future__ import annotations

import asyncio
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from hone.policy.gateway.chat_request import ChatRequest
from hone.policy.gateway.errors import GatewayError
from hone.policy.gateway.session import Session
from hone.policy.gateway.wire.format import Format

# For so long a stream is held back, so that a refusal can still have its status; then the client hears that
# it is being served, and again and again until the reply is there.
QUIET_S = 10.0


def json_reply(
    data: dict[str, Any], status: int = 200, headers: dict[str, str] | None = None
) -> web.Response:
    return web.Response(body=to_json(data), status=status, headers=headers, content_type="application/json")


def refuse(wire: Format, error: GatewayError) -> web.Response:
    # Clients that know this header neither guess nor wait.
    again = {"x-should-retry": "true" if error.status >= 500 else "false"}
    return json_reply(wire.error(error), error.status, again)


async def deliver(
    request: web.Request, wire: Format, session: Session, asked: ChatRequest, *, quiet_s: float = QUIET_S
) -> web.StreamResponse:
    """Answer a request for a reply. Raises GatewayError while the answer has not begun."""
    headers = {"x-hone-ignored": ", ".join(asked.ignored), "x-hone-overridden": ", ".join(asked.overridden)}
    headers = {name: value for name, value in headers.items() if value}
    if not asked.stream:
        exchange, shown = await session.ask(asked)
        body = to_json(wire.reply(session, asked, exchange, shown))
        headers |= {"Content-Type": "application/json", "Content-Length": str(len(body))}
        return await _Reply(request, session, headers).send(body)
    headers |= {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache"}
    reply = _Reply(request, session, headers)
    asking = asyncio.create_task(session.ask(asked))
    try:
        await asyncio.wait({asking}, timeout=quiet_s)
        while not asking.done():
            if not await reply.write(wire.waiting(asked)):
                return reply.response
            await asyncio.wait({asking}, timeout=quiet_s)
        try:
            exchange, shown = asking.result()
        except GatewayError as error:
            if not reply.begun:
                raise
            return await reply.send(wire.error_event(error))
        return await reply.send(b"".join(wire.events(session, asked, exchange, shown)))
    finally:
        asking.cancel()
        await asyncio.wait({asking})
        if not asking.cancelled():
            asking.exception()  # marks it as seen


class _Reply:
    """A reply under way. A client that goes away is nobody's failure: what it asked for is in the record."""

    def __init__(self, request: web.Request, session: Session, headers: dict[str, str]) -> None:
        self.response = web.StreamResponse(headers=headers)
        self.begun = False
        self._request = request
        self._session = session

    async def write(self, data: bytes) -> bool:
        """False: the client is gone."""
        try:
            if not self.begun:
                self.begun = True
                await self.response.prepare(self._request)
            await self.response.write(data)
        except ConnectionError:
            return False
        return True

    async def send(self, data: bytes) -> web.StreamResponse:
        """Write the rest, and end; or break off in the middle, where a script tries out what clients do."""
        drop = self._session.next_drop()
        if await self.write(data[:drop]) and drop is not None and self._request.transport is not None:
            self._request.transport.close()
        return self.response
