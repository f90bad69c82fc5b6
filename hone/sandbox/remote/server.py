"""The common part of node and pool servers: errors, limits, metrics, listening."""

from __future__ import annotations

import resource
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import ASGIApp

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.remote.auth import refuse_open_door
from hone.sandbox.remote.errors import EXPECTED, error_response, to_body
from hone.utils.http_server import LimitConcurrency, Tls, address, listen, make_app

HEALTH_PATH, METRICS_PATH = "/healthz", "/metrics"  # served beyond the limit on requests, too


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
            raise ProviderUnavailable(
                f"cannot listen on {self.host}, port {self.port}: {error.strerror}", retryable=False
            ) from error

    def url(self, listener: socket.socket) -> str:
        return address(listener, tls=self.tls is not None)


def raise_open_files() -> None:
    """Raise this process's limit on open files to the highest that it may have."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
