"""The common part of node and pool servers: tokens, TLS, errors, limits, metrics, listening."""

from __future__ import annotations

import hashlib
import os
import resource
import socket
import ssl
import stat
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from starlette.requests import HTTPConnection
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.remote.errors import EXPECTED, error_response, to_body
from hone.sandbox.remote.wire import OWNER_KEY_HEADER
from hone.utils.http_server import LimitConcurrency, Tls, address, is_loopback, listen, make_app

HEALTH_PATH, METRICS_PATH = "/healthz", "/metrics"  # served beyond the limit on requests, too
_TOKEN_MAX = 4096  # bytes of a token file


def read_token(path: Path) -> str:
    """Return the token in a file, without surrounding white space.

    Raises ProviderUnavailable when the file is missing, empty, or may be read or written by others.
    """
    try:
        with path.open("rb") as file:
            info = os.fstat(file.fileno())
            data = file.read(_TOKEN_MAX + 1)
    except OSError as error:
        raise _refusal(path, f"cannot be read: {error.strerror}") from error
    if not stat.S_ISREG(info.st_mode) or info.st_mode & 0o077 or info.st_uid not in (0, os.geteuid()):
        raise _refusal(path, f"may be read or written by others; run: chmod 600 {path}")
    token = data.decode("ascii", "replace").strip()
    if not token or len(data) > _TOKEN_MAX or not token.isprintable() or not token.isascii() or " " in token:
        raise _refusal(path, "must hold one line of printable ASCII without spaces")
    return token


def _refusal(path: Path, why: str) -> ProviderUnavailable:
    return ProviderUnavailable(f"the token file {path} {why}", retryable=False)


def presented_owner_key(connection: HTTPConnection) -> str:
    """Return the SHA-256 of the owner key that a request carries; "" without one."""
    key = connection.headers.get(OWNER_KEY_HEADER, "")
    return hashlib.sha256(key.encode("utf-8", "surrogatepass")).hexdigest() if key else ""


def refuse_open_door(host: str, token: str) -> None:
    """Raise ProviderUnavailable for a server without a token that other machines could reach."""
    if not token and not is_loopback(host):
        raise ProviderUnavailable(
            f"without a token a server listens on loopback only, not on {host}: give --token-file",
            retryable=False,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientTls:
    """PEM files. By default the system's authorities are trusted and no client certificate is presented."""

    ca: Path | None = None  # that signed the servers' certificates
    certificate: Path | None = None  # this client's own (mutual TLS)
    key: Path | None = None

    def context(self) -> ssl.SSLContext:
        """Return the SSL context. Raises ProviderUnavailable when a file is missing or invalid."""
        try:
            context = ssl.create_default_context(cafile=self.ca)
            if self.certificate:
                context.load_cert_chain(self.certificate, self.key)
        except OSError as error:  # ssl.SSLError is one
            raise ProviderUnavailable(f"the TLS files cannot be used: {error}", retryable=False) from error
        return context


def make_server_app(
    routes: Sequence[BaseRoute], *, count_error: Callable[[str], None], max_requests: int
) -> ASGIApp:
    """Return an application that answers exceptions with an ErrorBody, whose code `count_error` gets.

    Requests beyond `max_requests` at a time get ProviderUnavailable.
    """

    def respond(error: Exception) -> Response:
        count_error(to_body(error)[1].code)
        return error_response(error)

    def busy() -> Response:
        return respond(ProviderUnavailable(f"{max_requests} requests are running already", retryable=True))

    app = make_app(routes, error_response=lambda _, error: respond(error), expected=EXPECTED)
    return LimitConcurrency(app, limit=max_requests, busy=busy, exempt=(HEALTH_PATH, METRICS_PATH))


@dataclass(frozen=True, slots=True, kw_only=True)
class Listening:
    """Where a server listens."""

    host: str
    port: int  # 0: a free one
    tls: Tls | None = None

    def open(self, token: str) -> socket.socket:
        """Return a listening socket for a server that `token` protects.

        Raises ProviderUnavailable when it cannot listen, or when anyone could use the server without a token.
        """
        refuse_open_door(self.host, token)
        raise_open_files()
        try:
            return listen(self.host, self.port)
        except OSError as error:
            why = os.strerror(error.errno) if error.errno else str(error)
            raise ProviderUnavailable(
                f"port {self.port} of {self.host} cannot be used ({why}): choose another one with --port",
                retryable=False,
            ) from error

    def url(self, listener: socket.socket) -> str:
        return address(listener, tls=self.tls is not None)


def raise_open_files() -> None:
    """Raise this process's limit on open files to the highest that it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
