"""HTTP requests to one server: one error type, every wait bounded, idempotent requests retried."""

from __future__ import annotations

import asyncio
import io
import json
import socket
import ssl
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from typing import IO, Any, cast

import aiohttp

from hone.utils.retry import backoff_delays, retry
from hone.utils.sockets import keep_alive

CONNECT_S = 10.0
_ATTEMPTS = 7  # of an idempotent request; the delays between them add up to 7 s
_LARGE_BODY = 1 << 16  # bytes above which a body is sent in pieces
_LARGE_REPLY = 1 << 18  # bytes above which JSON is parsed in a thread
_NO_REPLY = (aiohttp.ClientError, ConnectionError, TimeoutError)


class HttpError(Exception):
    """A request failed.

    Attributes:
        status: of the reply; None without a complete reply: the server may or may not have acted.
        body: of the reply.
    """

    def __init__(self, message: str, *, status: int | None = None, body: bytes = b"") -> None:
        super().__init__(message)
        self.status, self.body = status, body

    @property
    def detail(self) -> str:
        """The server's explanation, in one line: the innermost "error" or "message" of a JSON body."""
        text = self.body.decode(errors="replace")
        value: Any
        try:
            value = json.loads(text)
        except ValueError:
            value = text
        while isinstance(value, dict):
            fields = cast("dict[str, Any]", value)
            value = fields.get("error") or fields.get("message") or json.dumps(fields)
        return " ".join(str(value).split())[:400] or "no explanation"


def new_session(
    *, context: ssl.SSLContext | None = None, keep_alive_s: float = 15.0
) -> aiohttp.ClientSession:
    """Return a session for any number of servers and concurrent requests; the caller closes it.

    Args:
        keep_alive_s: how long an idle connection is kept; shorter than the servers do, or requests break.
    """
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=keep_alive_s, ssl=context or True, socket_factory=_new_socket
    )
    return aiohttp.ClientSession(connector=connector)


def bearer(token: str) -> dict[str, str]:
    """Return the header that presents a token; none for ""."""
    return {"Authorization": f"Bearer {token}"} if token else {}


class HttpClient:
    """One server. Sessions are shared between clients."""

    def __init__(
        self,
        session: aiohttp.ClientSession,
        url: str,
        *,
        token: str = "",
        translate: Callable[[HttpError], Exception] = lambda error: error,
    ) -> None:
        """
        Args:
            url: of the server, with or without a path.
            token: presented as a bearer token; "" for none.
            translate: turns an HttpError into the exception that callers of this client expect.
        """
        self.url = url.rstrip("/")
        self.session = session
        self.headers = bearer(token)
        self._translate = translate

    @asynccontextmanager
    async def stream(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | IO[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        """Yield a successful reply whose body is still to be read. Raises HttpError, translated."""
        with self._translated():
            async with (
                self._bounded(method, path, timeout_s),
                self._send(method, path, body, params, headers) as response,
            ):
                yield response

    async def request(
        self,
        method: str,
        path: str,
        *,
        timeout_s: float,
        body: bytes | IO[bytes] | None = None,
        params: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
        idempotent: bool = False,
    ) -> bytes:
        """Return the body of a successful reply. Raises HttpError, translated.

        Args:
            timeout_s: for all attempts together.
            idempotent: send it again when no reply arrives.
        """

        async def attempt() -> bytes:
            async with self._send(method, path, body, params, headers) as response:
                return await response.read()

        with self._translated():
            async with self._bounded(method, path, timeout_s):
                return await retry(
                    attempt,
                    attempts=_ATTEMPTS if idempotent else 1,
                    delays=backoff_delays(0.05, factor=2.5, max_s=4.0),
                    transient=lambda error: isinstance(error, HttpError) and error.status is None,
                )

    async def request_json(self, method: str, path: str, body: Any = None, *, timeout_s: float) -> Any:
        """Send and return JSON; an empty reply is None. Raises HttpError, translated.

        Cancelling closes the connection, which tells the server to drop the request.
        """
        data = None if body is None else json.dumps(body).encode()
        headers = {"Content-Type": "application/json"} if data else None
        reply = await self.request(method, path, timeout_s=timeout_s, body=data, headers=headers)
        if not reply:
            return None
        try:
            return (
                await asyncio.to_thread(json.loads, reply) if len(reply) > _LARGE_REPLY else json.loads(reply)
            )
        except ValueError:
            with self._translated():
                raise HttpError(f"{self._where(method, path)} replied with no JSON: {reply[:80]!r}") from None

    @asynccontextmanager
    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        params: Mapping[str, str] | None,
        headers: Mapping[str, str] | None,
    ) -> AsyncGenerator[aiohttp.ClientResponse]:
        where = self._where(method, path)
        try:
            async with self.session.request(
                method,
                f"{self.url}{path}",
                headers={**self.headers, **(headers or {})},
                data=io.BytesIO(body) if isinstance(body, bytes) and len(body) > _LARGE_BODY else body,
                params=params,
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_S),
                allow_redirects=False,
            ) as response:
                if 200 <= response.status < 300:
                    yield response
                    return
                failed = HttpError("", status=response.status, body=await response.read())
        except _NO_REPLY as error:
            raise HttpError(f"{where} failed: {str(error) or type(error).__name__}") from error
        failed.args = (f"{where} got HTTP {failed.status}: {failed.detail}",)
        raise failed

    @asynccontextmanager
    async def _bounded(self, method: str, path: str, timeout_s: float) -> AsyncGenerator[None]:
        try:
            async with asyncio.timeout(timeout_s):
                yield
        except TimeoutError:
            raise HttpError(f"{self._where(method, path)} failed: no reply within {timeout_s:g} s") from None

    @contextmanager
    def _translated(self) -> Generator[None]:
        try:
            yield
        except HttpError as error:
            raise self._translate(error) from error.__cause__

    def _where(self, method: str, path: str) -> str:
        return f"{method} {self.url}{path.partition('?')[0]}"


def _new_socket(info: tuple[Any, ...]) -> socket.socket:
    sock = socket.socket(*info[:3])
    keep_alive(sock)
    return sock
