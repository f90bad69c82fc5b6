"""Opening the gateway: a port, a unix socket, or both."""

from __future__ import annotations

import errno
import os
import socket as sockets
from collections.abc import AsyncGenerator
from contextlib import ExitStack, asynccontextmanager
from pathlib import Path

from hone.policy.gateway.delivery import KEEP_ALIVE_S
from hone.policy.gateway.gateway import Admin, Gateway
from hone.policy.gateway.server import make_gateway_app
from hone.utils.http_server import address, listen, serving


@asynccontextmanager
async def open_gateway(
    *,
    socket: Path | None = None,
    host: str = "127.0.0.1",
    port: int | None = None,
    model: str = "hone",
    admin: Admin | None = None,
    max_body_bytes: int = 32 << 20,
    keep_alive_s: float = KEEP_ALIVE_S,
) -> AsyncGenerator[Gateway]:
    """Serve while the block runs, then close all sessions.

    Only the owner of `socket` can connect to it; `port` 0 takes a free port. Without `admin`, only
    `Gateway.open` opens sessions. A stream sends a keep-alive event after each `keep_alive_s` seconds without
    a reply. Raises OSError when it cannot listen, ValueError without `socket` and `port`.
    """
    if socket is None and port is None:
        raise ValueError("the gateway has no address: pass a port or a socket")
    with ExitStack() as opened:
        listeners: list[sockets.socket] = []
        if port is not None:
            listeners.append(opened.enter_context(listen(host, port)))
        if socket is not None:
            listeners.append(opened.enter_context(_unix(socket)))
            opened.callback(socket.unlink, missing_ok=True)
        gateway = Gateway(url=None if port is None else address(listeners[0]), socket=socket)
        app = make_gateway_app(
            gateway, model=model, admin=admin, max_body_bytes=max_body_bytes, keep_alive_s=keep_alive_s
        )
        async with serving(app, listeners, on_stop=gateway.close_all):
            yield gateway


def _unix(path: Path) -> sockets.socket:
    """Return a bound socket that only its owner can connect to; replace one that a dead process left."""
    if path.is_socket() and not _is_served(path):
        path.unlink()
    listener = sockets.socket(sockets.AF_UNIX)
    try:
        listener.bind(str(path))
        path.chmod(0o600)  # before it listens: no other user can connect in between
    except OSError as error:
        listener.close()
        raise OSError(error.errno or errno.EINVAL, error.strerror or str(error), os.fspath(path)) from error
    return listener


def _is_served(path: Path) -> bool:
    with sockets.socket(sockets.AF_UNIX) as probe:
        return probe.connect_ex(str(path)) == 0
