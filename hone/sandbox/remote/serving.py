"""What the servers share: bounded bodies, typed error replies, bounded requests, listening and stopping."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path

import uvicorn
from fastapi import FastAPI
from fastapi.requests import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Receive, Scope, Send

from hone.sandbox.contract import ProviderUnavailable, SandboxError, TooLarge
from hone.sandbox.remote.errors import to_body
from hone.sandbox.remote.tunnel import FRAME_MAX
from hone.sandbox.remote.wire import ErrorBody

BODY_S = 600.0  # the longest that the body of a request may take to arrive
CLIENT_GONE = 499  # the status of a request whose client left; nobody sees it
OPEN_PATHS = ("/healthz", "/metrics")  # answered however busy the server is
_GRACE_S = 5.0  # for replies to go out, once nothing runs any more


def reply(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def error_reply(error: BaseException) -> Response:
    status, body = to_body(error)
    return reply(body, status)


@contextlib.asynccontextmanager
async def arriving() -> AsyncIterator[None]:
    """Around the reading of a body: ValueError when it takes longer than BODY_S."""
    try:
        async with asyncio.timeout(BODY_S):
            yield
    except TimeoutError:
        raise ValueError(f"the body of the request did not arrive within {BODY_S:.0f} s") from None


async def body_chunks(request: Request, limit: int) -> AsyncIterator[bytes]:
    """The body of a request as it arrives. Raises TooLarge."""
    size = int(request.headers.get("content-length", "0"))
    if size > limit:
        raise TooLarge(f"the body of the request is larger than {limit} bytes")
    size = 0
    async for chunk in request.stream():
        size += len(chunk)
        if size > limit:
            raise TooLarge(f"the body of the request is larger than {limit} bytes")
        yield chunk


async def read_body(request: Request, limit: int) -> bytes:
    """The whole body. Raises TooLarge, ValueError when it takes too long."""
    async with arriving():
        return b"".join([chunk async for chunk in body_chunks(request, limit)])


def handle_errors(app: FastAPI, count: Callable[[str], None]) -> None:
    """Answer every exception with an ErrorBody; `count` is told its code."""

    async def typed(request: Request, error: Exception) -> Response:
        status, body = to_body(error)
        count(body.code)
        return reply(body, status)

    async def http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        count("bad_request")
        body = ErrorBody(error=str(error.detail), code="bad_request", retryable=False)
        return reply(body, error.status_code)

    async def gone(request: Request, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    for kind in (SandboxError, OSError, ValueError, Exception):  # the last is logged with its traceback
        app.add_exception_handler(kind, typed)
    app.add_exception_handler(HTTPException, http)
    app.add_exception_handler(ClientDisconnect, gone)


class BoundedRequests:
    """ASGI middleware: at most `most` requests at a time; more are told to come back."""

    def __init__(self, app: ASGIApp, most: int, count: Callable[[str], None]) -> None:
        self._app, self._most, self._count = app, most, count
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in OPEN_PATHS:
            await self._app(scope, receive, send)
            return
        if self._running >= self._most:
            full = ProviderUnavailable(f"{self._most} requests are running already", retryable=True)
            self._count(full.code)
            await error_reply(full)(scope, receive, send)
            return
        self._running += 1
        try:
            await self._app(scope, receive, send)
        finally:
            self._running -= 1


# --- listening and stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """Files in PEM form. With `client_ca`, clients must present a certificate that it signed (mutual TLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


async def serve(
    app: ASGIApp,
    listener: socket.socket,
    *,
    stop: asyncio.Event,
    on_stop: Callable[[], Awaitable[None]],
    tls: Tls | None = None,
) -> None:
    """Serve on a bound socket until `stop` is set.

    Then: nothing new is accepted, `on_stop` ends what runs (so that waiting requests get their typed errors),
    and the replies get five seconds to go out.
    """
    config = uvicorn.Config(
        app,
        http="httptools",
        ws="websockets-sansio",
        ws_max_size=FRAME_MAX,
        ws_per_message_deflate=False,
        ws_ping_interval=30.0,
        ws_ping_timeout=60.0,
        lifespan="off",
        timeout_keep_alive=75,  # longer than clients keep a connection
        access_log=False,  # addresses may hold tokens
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(_GRACE_S),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # inherited; a reply is two small packets
    server = _Server(config, on_stop)
    async with asyncio.TaskGroup() as group:
        serving = group.create_task(server.serve(sockets=[listener]))
        await asyncio.wait(
            {serving, stopped := group.create_task(stop.wait())}, return_when=asyncio.FIRST_COMPLETED
        )
        server.should_exit = True
        stopped.cancel()


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], Awaitable[None]]) -> None:
        super().__init__(config)
        self._on_stop = on_stop

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Signals are the caller's, who sets `stop`."""
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        await self._on_stop()
        await super().shutdown(sockets)
