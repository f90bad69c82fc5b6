"""Opening the gateway: a port, a unix socket, or both."""

from __future__ import annotations

import errno
import os
import socket as sockets
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from aiohttp import web

from hone.policy.gateway.delivery import QUIET_S
from hone.policy.gateway.gateway import Admin, Gateway
from hone.policy.gateway.server import make_app

_MAX_HEADER_BYTES = 16 << 10  # of one header; there may be 128
_GRACE_S = 5.0  # for answers to go out, once nothing is sampled any more


@asynccontextmanager
async def open_gateway(
    *,
    socket: Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    model: str = "hone",
    admin: Admin | None = None,
    max_body_bytes: int = 32 << 20,
    quiet_s: float = QUIET_S,
) -> AsyncGenerator[Gateway]:
    """A gateway that listens until the block ends; then its sessions are closed.

    `socket` is made so that only its owner may connect; `port` 0 takes a free one. Without `admin`, sessions
    are opened by `Gateway.open` alone. A stream says after each `quiet_s` seconds without a reply that it is
    alive. Raises OSError when it cannot listen, ValueError when it was told to listen nowhere.
    """
    if socket is None and port is None:
        raise ValueError("a gateway needs a port or a socket")
    with ExitStack() as opened:
        listeners: list[sockets.socket] = []
        if port is not None:
            listeners.append(opened.enter_context(_tcp(host, port)))
        if socket is not None:
            listeners.append(opened.enter_context(_unix(socket)))
            opened.callback(_remove, socket)
        gateway = Gateway(url=None if port is None else _url(listeners[0]), socket=socket)
        app = make_app(gateway, model=model, admin=admin, max_body_bytes=max_body_bytes, quiet_s=quiet_s)
        runner = web.AppRunner(
            app,
            access_log=None,  # paths hold secrets
            shutdown_timeout=_GRACE_S,
            keepalive_timeout=75.0,  # longer than clients keep a connection
            max_field_size=_MAX_HEADER_BYTES,
            max_line_size=_MAX_HEADER_BYTES,
        )
        try:
            await runner.setup()
            for listener in listeners:
                await web.SockSite(runner, listener).start()
            yield gateway
        finally:
            await gateway.close_all()
            await runner.cleanup()


def _url(listener: sockets.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _tcp(host: str, port: int) -> sockets.socket:
    family = sockets.AF_INET6 if ":" in host else sockets.AF_INET
    listener = sockets.create_server((host, port), family=family)
    listener.setsockopt(sockets.IPPROTO_TCP, sockets.TCP_NODELAY, 1)  # inherited by connections
    return listener


def _unix(path: Path) -> sockets.socket:
    """A bound socket that only its owner can connect to. One that a dead process left behind is replaced."""
    if path.is_socket() and not _is_served(path):
        path.unlink()
    listener = sockets.socket(sockets.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens, so that nobody is quicker
    except OSError as error:
        listener.close()
        raise OSError(error.errno or errno.EINVAL, error.strerror or str(error), os.fspath(path)) from error
    return listener


def _remove(path: Path) -> None:
    path.unlink(missing_ok=True)


def _is_served(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
