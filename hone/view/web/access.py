"""Who may read the pages: the host that a browser names, and the token.

Invariant: a page that another site, or another user of the network, opened shows nothing of a run.
"""

from __future__ import annotations

import hashlib
import hmac
import urllib.parse
from collections.abc import Collection

from starlette.requests import HTTPConnection, Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hone.utils.http_server import is_same_token

COOKIE = "hone_view"
LOGIN = "/login"
OPEN = (LOGIN, "/assets/")  # what the page of the login needs
API = "/api/"
HEADERS = {
    "content-security-policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; "
    "connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


def session_of(token: str) -> str:
    """Return the cookie's value for a token, from which the token cannot be read."""
    return hmac.new(token.encode(), b"hone view: a browser with the token", hashlib.sha256).hexdigest()


def local_path(path: str) -> str:
    """Return a path of this server to go to after the login, never another site."""
    return path if path.startswith("/") and not path.startswith(("//", "/\\")) and path.isprintable() else "/"


class AddHeaders:
    """ASGI middleware: every answer carries HEADERS."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", ()), *self._headers]
            await send(message)

        await self._app(scope, receive, with_headers)


class CheckHost:
    """ASGI middleware: answer only requests whose Host header names this server.

    A page of another site can make its own name resolve to 127.0.0.1 (DNS rebinding); its requests still
    carry that name.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str]) -> None:
        self._app, self._hosts = app, hosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and self._hosts and self._named(scope) not in self._hosts:
            refusal = f"This server answers to {', '.join(sorted(self._hosts))} only."
            await PlainTextResponse(refusal, 403)(scope, receive, send)
        else:
            await self._app(scope, receive, send)

    def _named(self, scope: Scope) -> str:
        try:
            return urllib.parse.urlsplit("//" + HTTPConnection(scope).headers.get("host", "")).hostname or ""
        except ValueError:
            return ""


class CheckToken:
    """ASGI middleware: answer only requests with the token or the cookie of the login; "" lets all pass."""

    def __init__(self, app: ASGIApp, *, token: str) -> None:
        self._app, self._token = app, token
        self._session = session_of(token) if token else ""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or not self._token or self._is_open(scope["path"]) or self._knows(scope):
            await self._app(scope, receive, send)
        else:
            await self._deny(Request(scope))(scope, receive, send)

    def _is_open(self, path: str) -> bool:
        return path == LOGIN or path.startswith(OPEN[1])

    def _knows(self, scope: Scope) -> bool:
        connection = HTTPConnection(scope)
        scheme, _, value = connection.headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and is_same_token(value.strip(), self._token):
            return True
        return is_same_token(connection.cookies.get(COOKIE, ""), self._session)

    def _deny(self, request: Request) -> Response:
        path = request.url.path
        if path.startswith(API) or request.method != "GET":
            refusal = "Present the token of --token-file: `Authorization: Bearer TOKEN`."
            return PlainTextResponse(refusal, 401, {"www-authenticate": "Bearer"})
        wanted = path + (f"?{request.url.query}" if request.url.query else "")
        return RedirectResponse(f"{LOGIN}?{urllib.parse.urlencode({'next': wanted})}", 303)
