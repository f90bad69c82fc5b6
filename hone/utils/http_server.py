"""HTTP servers on Starlette and uvicorn: errors, tokens, bodies, disconnects, listening, stopping."""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import hmac
import io
import ipaddress
import signal
import socket
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Generator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import uvicorn
from pydantic import BaseModel
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, HTTPConnection, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp, Receive, Scope, Send

from hone.utils.http_connections import HttpProtocol, ServerState
from hone.utils.http_memory import LARGE, ReleaseMemory, hold_memory
from hone.utils.json_models import read_json
from hone.utils.sockets import keep_alive

BODY_S = 600.0  # the longest that the body of a request may take to arrive
CLIENT_GONE = 499  # status of a request whose client disconnected; never sent
GRACE_S = 5.0  # for replies to leave once everything else has stopped
_BACKLOG = 4096
_GRACE_S, _RATE_MIN = 30.0, 1 << 16  # a body arrives with so many bytes per second, after this time
_KEEP_ALIVE_S = 75  # longer than clients keep an idle connection

Result = TypeVar("Result")
Model = TypeVar("Model", bound=BaseModel)
ErrorResponse = Callable[[HTTPConnection, Exception], Response]


# --- applications


def model_response(model: BaseModel, status: int = 200) -> Response:
    return Response(model.model_dump_json(), status, media_type="application/json")


def make_app(
    routes: Sequence[BaseRoute], *, error_response: ErrorResponse, expected: Sequence[type[Exception]] = ()
) -> Starlette:
    """Return an application that answers every exception with `error_response(connection, exception)`.

    Starlette's HTTPException (no such path, wrong method) goes through it too. Exceptions that are not
    `expected` are also logged with their traceback.
    """

    async def respond(connection: HTTPConnection, error: Exception) -> Response:
        return error_response(connection, error)

    async def client_gone(_: HTTPConnection, error: Exception) -> Response:
        return Response(status_code=CLIENT_GONE)

    handlers: dict[Any, Any] = dict.fromkeys((*expected, HTTPException, Exception), respond)
    return Starlette(routes=routes, exception_handlers={**handlers, ClientDisconnect: client_gone})


class LimitConcurrency:
    """ASGI middleware: answer requests beyond `limit` at a time with `busy()`. `exempt` paths always pass."""

    def __init__(
        self, app: ASGIApp, *, limit: int, busy: Callable[[], Response], exempt: Sequence[str]
    ) -> None:
        self._app, self._limit, self._busy, self._exempt = app, limit, busy, exempt
        self._running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or scope["path"] in self._exempt:
            await self._app(scope, receive, send)
        elif self._running >= self._limit:
            await self._busy()(scope, receive, send)
        else:
            self._running += 1
            try:
                await self._app(scope, receive, send)
            finally:
                self._running -= 1


class RequireToken:
    """ASGI middleware: answer requests without `token` with `denied()`; "" lets all pass."""

    def __init__(
        self, app: ASGIApp, *, token: str, denied: Callable[[], Response], exempt: Sequence[str]
    ) -> None:
        self._app, self._token, self._denied, self._exempt = app, token, denied, exempt

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        guarded = self._token and scope["type"] == "http" and scope["path"] not in self._exempt
        if guarded and not is_same_token(presented_token(HTTPConnection(scope)), self._token):
            await self._denied()(scope, receive, send)
        else:
            await self._app(scope, receive, send)


# --- tokens


def presented_token(connection: HTTPConnection) -> str:
    """Return the token that a request carries, or "".

    The first of these counts: `Authorization: Bearer TOKEN`; basic authentication with the token as user
    name or password (`http://TOKEN@host:port`); `?token=TOKEN`.
    """
    scheme, _, value = connection.headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        return value.strip()
    if scheme.lower() == "basic":
        try:
            name, _, password = base64.b64decode(value.strip(), validate=True).decode().partition(":")
        except (binascii.Error, UnicodeDecodeError):
            return ""
        return name or password
    return connection.query_params.get("token", "")


def is_same_token(presented: str, expected: str) -> bool:
    """Compare in constant time; an empty `expected` matches nothing."""
    return bool(expected) and hmac.compare_digest(
        presented.encode("utf-8", "surrogatepass"), expected.encode()
    )


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server that listens on `host`."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


# --- requests


class BodyTooLarge(Exception):
    """The body of a request is larger than the server accepts."""


async def stream_body(request: Request, limit: int) -> AsyncIterator[bytes]:
    """Yield the body of a request as it arrives.

    Raises BodyTooLarge beyond `limit` bytes, ValueError when it arrives too slowly.
    """
    size = int(request.headers.get("content-length", "0"))
    if size > limit:
        raise BodyTooLarge(f"the body of the request is larger than {limit} bytes")
    size, loop, waited_s = 0, asyncio.get_running_loop(), 0.0
    chunks = request.stream()
    while True:
        asked = loop.time()
        try:
            async with asyncio.timeout(_GRACE_S + size / _RATE_MIN - waited_s):
                chunk = await anext(chunks, None)
        except TimeoutError:
            raise ValueError(
                f"the body of the request arrives too slowly: {size} bytes after {loop.time() - asked:.0f} s"
            ) from None
        waited_s += loop.time() - asked
        if chunk is None:
            return
        size += len(chunk)
        if size > limit:
            raise BodyTooLarge(f"the body of the request is larger than {limit} bytes")
        yield chunk


async def read_body(request: Request, limit: int) -> bytes:
    """Return the whole body; its memory is held until the request ends, or `release_body`.

    Raises BodyTooLarge, ServerBusy, and ValueError when it takes more than BODY_S.
    """
    if "transfer-encoding" in request.headers:
        declared = limit
    elif (declared := int(request.headers.get("content-length", "0"))) <= min(limit, LARGE):
        async with body_timeout(_GRACE_S):
            return b"".join([chunk async for chunk in request.stream()])
    if declared > limit:
        raise BodyTooLarge(f"the body of the request is larger than {limit} bytes")
    await hold_memory(request, declared)
    whole = io.BytesIO()  # which grows in place and gives its content without a copy
    async with body_timeout():
        async for chunk in stream_body(request, limit):
            whole.write(chunk)
    return whole.getvalue()


async def read_model(request: Request, model: type[Model], limit: int) -> Model:
    """Return the body, which is JSON. Raises ValueError, and what `read_body` raises."""
    return read_json(model, await read_body(request, limit))


@contextlib.asynccontextmanager
async def body_timeout(limit_s: float = BODY_S) -> AsyncIterator[None]:
    """Raise ValueError when the block, which reads a body, takes more than `limit_s` seconds."""
    try:
        async with asyncio.timeout(limit_s):
            yield
    except TimeoutError:
        raise ValueError(f"the body of the request did not arrive within {limit_s:.0f} s") from None


async def while_connected(receive: Receive, operation: Coroutine[Any, Any, Result]) -> Result:
    """Await an operation; when the client disconnects, cancel it and raise ClientDisconnect.

    The body of the request must have been read.
    """
    running = asyncio.create_task(operation)
    leaving = asyncio.create_task(wait_for_disconnect(receive))
    try:
        await asyncio.wait({running, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not running.done():
            raise ClientDisconnect
        return running.result()
    finally:
        running.cancel()
        leaving.cancel()
        await asyncio.wait({running, leaving})


async def wait_for_disconnect(receive: Receive) -> None:
    """Return when the client disconnects, or its response is complete. The body must have been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


# --- listening and stopping


@dataclass(frozen=True, slots=True, kw_only=True)
class Tls:
    """PEM files. With `client_ca`, clients must present a certificate that it signed (mutual TLS)."""

    certificate: Path
    key: Path
    client_ca: Path | None = None


def listen(host: str, port: int) -> socket.socket:
    """Return a listening TCP socket; port 0 takes a free one. Raises OSError."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.create_server((host, port), family=family, backlog=_BACKLOG)
    listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # a reply is two small packets
    keep_alive(listener)
    return listener  # whose connections inherit its options


def address(listener: socket.socket, *, tls: bool = False) -> str:
    """Return the URL of a listening TCP socket."""
    host, port = listener.getsockname()[:2]
    return f"{'https' if tls else 'http'}://{f'[{host}]' if ':' in host else host}:{port}"


def stop_event() -> asyncio.Event:
    """Return an event that SIGTERM and SIGINT set."""
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    return stop


@contextlib.asynccontextmanager
async def serving(
    app: ASGIApp,
    listeners: Sequence[socket.socket],
    *,
    on_stop: Callable[[], Awaitable[None]] | None = None,
    tls: Tls | None = None,
) -> AsyncGenerator[None]:
    """Serve on bound sockets (TCP or unix) while the block runs.

    Then the server closes the sockets, awaits `on_stop`, which ends what runs (so that waiting requests get
    their errors), and gives replies GRACE_S to leave.
    """
    config = uvicorn.Config(
        ReleaseMemory(app),
        http=HttpProtocol,
        ws="websockets-sansio",
        ws_per_message_deflate=False,
        ws_max_size=1 << 20,
        ws_ping_interval=None,  # a peer that does not read answers no ping; TCP finds dead ones
        lifespan="off",
        timeout_keep_alive=_KEEP_ALIVE_S,
        access_log=False,  # addresses may hold tokens
        log_config=None,  # the handlers of the program
        log_level="warning",
        server_header=False,
        timeout_graceful_shutdown=int(GRACE_S),
        ssl_certfile=tls.certificate if tls else None,
        ssl_keyfile=tls.key if tls else None,
        ssl_ca_certs=str(tls.client_ca) if tls and tls.client_ca else None,
        ssl_cert_reqs=ssl.CERT_REQUIRED if tls and tls.client_ca else ssl.CERT_NONE,
    )
    server = _Server(config, on_stop)
    running = asyncio.create_task(server.serve(sockets=list(listeners)))
    accepting = asyncio.create_task(server.accepting.wait())
    try:
        await asyncio.wait({running, accepting}, return_when=asyncio.FIRST_COMPLETED)
        if running.done():  # it could not start
            running.result()
        yield
    finally:
        accepting.cancel()
        server.stop()
        await running


class _Server(uvicorn.Server):
    def __init__(self, config: uvicorn.Config, on_stop: Callable[[], Awaitable[None]] | None) -> None:
        super().__init__(config)
        self._on_stop = on_stop
        self._state = self.server_state = ServerState()
        self._stopping = asyncio.Event()
        self.accepting = asyncio.Event()

    def stop(self) -> None:
        self.should_exit = True
        self._stopping.set()

    async def main_loop(self) -> None:
        """Update the date header and close late connections every second until `stop`.

        uvicorn's own loop polls ten times as often.
        """
        while not await self.on_tick(0):
            self._state.close_late(asyncio.get_running_loop().time())
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), 1.0)

    @contextlib.contextmanager
    def capture_signals(self) -> Generator[None]:
        """Leave signals to the caller."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.accepting.set()

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        if self._on_stop is not None:
            await self._on_stop()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        await asyncio.sleep(0)  # idle connections close in this turn of the loop
        if self.server_state.connections or self.server_state.tasks:
            await super().shutdown(sockets)  # waits in steps of 0.1 s
        for listening in sockets or ():
            listening.close()
