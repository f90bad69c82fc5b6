"""The server of `hone view`: pages under /, the same records as JSON under /api. It changes nothing."""

from __future__ import annotations

import hashlib
import os
import urllib.parse
from collections.abc import Callable, Collection

from starlette.exceptions import HTTPException
from starlette.requests import HTTPConnection, Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp

from hone.sandbox.remote.server import refuse_open_door
from hone.utils.errors import HoneError
from hone.utils.http_server import (
    BodyTooLarge,
    address,
    is_loopback,
    is_same_token,
    listen,
    make_app,
    read_body,
    serving,
    stop_event,
)
from hone.view.errors import NotFound
from hone.view.library import Library
from hone.view.values import to_json
from hone.view.web import access
from hone.view.web.html import ASSETS, read_asset, render
from hone.view.web.links import Links
from hone.view.web.pages import PAGES, Asked, Page
from hone.view.web.query import BadQuery

LOOPBACK_HOSTS = frozenset({"localhost", "127.0.0.1", "::1"})
_LOGIN_MAX = 8192  # bytes of the form
_MEDIA = {"js": "text/javascript", "css": "text/css", "svg": "image/svg+xml"}


class CannotListen(HoneError):
    """The address that pages were to be served at is not available."""


async def serve(
    library: Library, *, host: str, port: int, token: str, on_listening: Callable[[str], None]
) -> None:
    """Serve until SIGTERM or SIGINT. `on_listening` gets the server's URL.

    Raises CannotListen, and ProviderUnavailable without a token where other machines could connect.
    """
    refuse_open_door(host, token)
    try:
        listener = listen(host, port)
    except OSError as error:
        why = os.strerror(error.errno or 0)
        raise CannotListen(
            f"cannot listen on {host}, port {port} ({why}): stop the program that uses it, or give another "
            "--port; 0 takes a free one"
        ) from error
    hosts = LOOPBACK_HOSTS | {host} if is_loopback(host) else frozenset[str]()
    with listener:
        stop = stop_event()
        async with serving(make_view_app(library, token=token, hosts=hosts), [listener]):
            on_listening(address(listener))
            await stop.wait()


def make_view_app(library: Library, *, token: str, hosts: Collection[str]) -> ASGIApp:
    """Return the application.

    Args:
        token: "" lets every request pass.
        hosts: names that a Host header may have; empty: any.
    """
    routes = [
        Route("/assets/{name}", _asset, methods=["GET"]),
        Route(access.LOGIN, _login(token), methods=["GET", "POST"]),
        Route("/api", _endpoint(library, PAGES["/"], as_json=True), methods=["GET"]),
        Route("/api/runs", _endpoint(library, PAGES["/"], as_json=True), methods=["GET"]),
        *(
            Route(f"/api{path}", _endpoint(library, make, as_json=True), methods=["GET"])
            for path, make in PAGES.items()
        ),
        Route("/runs/{run}/files/{file:path}", _file(library), methods=["GET"]),
        Route("/runs", lambda _: RedirectResponse("/", 308), methods=["GET"]),
        *(
            Route(path, _endpoint(library, make, as_json=False), methods=["GET"])
            for path, make in PAGES.items()
        ),
    ]
    app: ASGIApp = make_app(routes, error_response=_error_response, expected=(HoneError, BodyTooLarge))
    app = access.CheckToken(app, token=token)
    return access.AddHeaders(access.CheckHost(app, hosts=hosts))


def _endpoint(
    library: Library, make: Callable[[Library, Asked], Page], *, as_json: bool
) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:  # in a thread of Starlette's: it reads files
        asked = Asked(path=request.path_params, query=request.query_params.multi_items())
        page = make(library, asked)
        if as_json:
            return _answer(request, to_json(page.record).encode(), "application/json")
        links = Links(request.url.path)
        text = render(page.template, links, live=page.live, **page.values)
        return _answer(request, text.encode("utf-8", "replace"), "text/html")

    return answer


def _file(library: Library) -> Callable[[Request], Response]:
    def answer(request: Request) -> Response:
        path = library.file(request.path_params["run"], request.path_params["file"])
        media_type = "application/octet-stream" if path.suffix == ".parquet" else "text/plain"
        return _answer(request, path.read_bytes(), media_type)

    return answer


def _answer(request: Request, body: bytes, media_type: str) -> Response:
    """Return the body, or 304 where the browser has it already."""
    tag = f'"{hashlib.blake2b(body, digest_size=16).hexdigest()}"'
    headers = {"etag": tag, "cache-control": "private, no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(body, headers=headers, media_type=media_type)


def _asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        raise HTTPException(404)
    return _answer(request, read_asset(name), _MEDIA[name.rpartition(".")[2]])


def _login(token: str) -> Callable[[Request], object]:
    async def login(request: Request) -> Response:
        wanted = access.local_path(request.query_params.get("next", "/"))
        refusal = ""
        if request.method == "POST":
            form = urllib.parse.parse_qs((await read_body(request, _LOGIN_MAX)).decode("utf-8", "replace"))
            if is_same_token(form.get("token", [""])[0].strip(), token):
                response = RedirectResponse(wanted, 303)
                response.set_cookie(
                    access.COOKIE, access.session_of(token), httponly=True, samesite="strict", path="/"
                )
                return response
            refusal = "This is not the token of --token-file."
        text = render("login.html.jinja", Links(access.LOGIN), live=False, refusal=refusal, next=wanted)
        return Response(text, 401 if refusal else 200, media_type="text/html")

    return login


def _error_response(connection: HTTPConnection, error: Exception) -> Response:
    status, sentence = _explain(connection, error)
    path = connection.url.path
    if path.startswith(access.API):
        return Response(to_json({"error": sentence}), status, media_type="application/json")
    text = render("error.html.jinja", Links("/"), live=False, sentence=sentence, status=status)
    return Response(text.encode("utf-8", "replace"), status, media_type="text/html")


def _explain(connection: HTTPConnection, error: Exception) -> tuple[int, str]:
    """Return the status and the sentence of an error."""
    if isinstance(error, NotFound):
        return 404, _sentence(error)
    if isinstance(error, (BadQuery, BodyTooLarge)):
        return 400, _sentence(error)
    if isinstance(error, HTTPException):
        if error.status_code == 404:
            return 404, f"There is no page {connection.url.path}."
        if error.status_code == 405:
            return 405, "Pages are read with GET; nothing can be changed here."
        return error.status_code, str(error.detail)
    if isinstance(error, HoneError):
        return 500, _sentence(error)
    return 500, f"Unexpected error: {type(error).__name__}. The server's log has its traceback."


def _sentence(error: Exception) -> str:
    text = " ".join(str(error).split())
    return text[:1].upper() + text[1:] + ("" if text.endswith((".", "!", "?")) else ".")
