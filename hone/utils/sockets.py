"""Socket options that HTTP clients and servers share."""

from __future__ import annotations

import socket


def keep_alive(sock: socket.socket) -> None:
    """Let TCP notice a dead peer after about a minute without data."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, 30)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, 10)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
