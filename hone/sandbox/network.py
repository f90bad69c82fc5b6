"""Network access of sandboxes: a proxy with an allow-list, and a tunnel to one unix socket.

Each sandbox has its own unix sockets in the owner's private directory, mounted inside at fixed paths. The
HTTP proxy serves CONNECT for encrypted connections and absolute URLs for plain HTTP (RFC 9110, 9112).
Invariant: an allowed name connects only to public addresses, so that DNS cannot point it at the host, its
network or a metadata service. A private address must be allowed literally.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from pathlib import Path
from urllib.parse import urlsplit

from hone.sandbox.contract import TUNNEL_PATH, SandboxSpec
from hone.utils.concurrency import cancel_all

PROXY_PATH = "/run/hone/proxy.sock"
PROXY_PORT = 3128  # on the sandbox's own loopback
_PROXY_URL, _NO_PROXY = f"http://127.0.0.1:{PROXY_PORT}", "localhost,127.0.0.1"
PROXY_ENV = {
    **dict.fromkeys(("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"), _PROXY_URL),
    **dict.fromkeys(("no_proxy", "NO_PROXY"), _NO_PROXY),
}

CONNECTIONS_MAX = 64  # of one socket at a time
_HEAD_MAX = 16 << 10  # bytes of a request's first line and headers
_CONNECT_S, _IDLE_S = 20.0, 300.0
_log = logging.getLogger(__name__)

_Pair = tuple[asyncio.StreamReader, asyncio.StreamWriter]
Join = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


class _Refused(Exception):
    """The proxy refuses a request, with the status line and the reason for the client."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status = status


def parse_allowed(entries: tuple[str, ...]) -> frozenset[tuple[str, int]]:
    """Return the allowed (host, port) pairs. Raises ValueError for an entry that is not `host:port`."""
    allowed: set[tuple[str, int]] = set()
    for entry in entries:
        host, _, port = entry.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536 or "*" in host or "/" in host:
            raise ValueError(
                f"an entry of the network allow-list is host:port, such as pypi.org:443, not {entry!r}"
            )
        allowed.add((_plain(host), int(port)))
    return frozenset(allowed)


def _plain(host: str) -> str:
    return host.strip("[]").rstrip(".").lower()


async def open_sockets(
    directory: Path, sandbox: str, spec: SandboxSpec, resources: AsyncExitStack
) -> list[tuple[str, str]]:
    """Serve a sandbox's proxy and tunnel while `resources` are open; return (socket, path inside) pairs."""
    sockets: list[tuple[str, str]] = []
    if spec.network:
        path = directory / f"{sandbox}-proxy"
        await resources.enter_async_context(open_proxy(path, sandbox, spec.network))
        sockets.append((str(path), PROXY_PATH))
    if spec.tunnel:
        path = directory / f"{sandbox}-tunnel"
        await resources.enter_async_context(open_tunnel(path, spec.tunnel))
        sockets.append((str(path), TUNNEL_PATH))
    return sockets


@asynccontextmanager
async def open_proxy(path: Path, sandbox: str, entries: tuple[str, ...]) -> AsyncIterator[None]:
    """Serve the proxy of one sandbox at `path`."""
    allowed = parse_allowed(entries)

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            async with asyncio.timeout(_CONNECT_S):
                upstream, first = await _connect(reader, allowed)
        except _Refused as refused:
            _log.warning("sandbox %s: %s", sandbox, refused)
            writer.write(f"HTTP/1.1 {refused.status}\r\nConnection: close\r\n\r\n{refused}\n".encode())
            return
        if first is None:
            writer.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        else:
            upstream[1].write(first)
        await _pipe((reader, writer), upstream)

    async with serve_unix(path, join, limit=_HEAD_MAX):
        yield


@asynccontextmanager
async def open_tunnel(path: Path, service: Path) -> AsyncIterator[None]:
    """Forward every connection at `path` to the unix socket `service`."""

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async with asyncio.timeout(_CONNECT_S):
            upstream = await connect_unix(service)
        await _pipe((reader, writer), upstream, idle_s=None)  # the service may take any time to answer

    async with serve_unix(path, join):
        yield


@asynccontextmanager
async def serve_unix(path: Path, join: Join, *, limit: int = 1 << 16) -> AsyncIterator[None]:
    """Run a unix server whose connections end with it. Every user that sees the socket may connect.

    Args:
        join: carries one connection, and may raise OSError, TimeoutError or what StreamReader raises.
        limit: of each StreamReader, in bytes.
    """
    tasks: set[asyncio.Task[None]] = set()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
                await join(reader, writer)
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(tasks) >= CONNECTIONS_MAX:
            writer.close()
            return
        task = asyncio.create_task(serve(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    server = await asyncio.start_unix_server(accept, sock=_bind(path), limit=limit)
    try:
        yield
    finally:
        server.close()
        await cancel_all(list(tasks))
        os.unlink(path)  # noqa: PTH108 - Path.unlink counts as blocking, this does not


def _bind(path: Path) -> socket.socket:
    bound = socket.socket(socket.AF_UNIX)
    with _short(path) as address:
        bound.bind(address)
    path.chmod(0o666)
    return bound


async def connect_unix(path: Path) -> _Pair:
    """Connect to a unix socket. Raises OSError."""
    with _short(path) as address:
        return await asyncio.open_unix_connection(address)


@contextmanager
def _short(path: Path) -> Iterator[str]:
    """Yield a name of a socket that fits into an address, which holds 107 bytes."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{directory}/{path.name}"
    finally:
        os.close(directory)


async def _connect(
    reader: asyncio.StreamReader, allowed: frozenset[tuple[str, int]]
) -> tuple[_Pair, bytes | None]:
    """Read a request; return the connection it asks for and the bytes to send first (None: CONNECT)."""
    head = await reader.readuntil(b"\r\n\r\n")
    line, _, headers = head.partition(b"\r\n")
    words = line.decode("latin-1").split(" ")
    if len(words) != 3:
        raise _Refused("400 Bad Request", "the request has no method, address and version")
    method, address, version = words
    if method == "CONNECT":
        host, _, port = address.rpartition(":")
        if not port.isdigit():
            raise _Refused("400 Bad Request", f"CONNECT takes host:port, not {address!r}")
        return await _dial(_plain(host), int(port), allowed), None
    try:
        parts = urlsplit(address)
        host, port_number = _plain(parts.hostname or ""), parts.port or 80
    except ValueError:
        raise _Refused("400 Bad Request", f"{address!r} is not a URL") from None
    if parts.scheme != "http" or not host:
        raise _Refused("400 Bad Request", "a proxy takes CONNECT or an absolute http:// address")
    target = address[len(f"http://{parts.netloc}") :] or "/"
    pair = await _dial(host, port_number, allowed)
    return pair, f"{method} {target} {version}\r\n".encode("latin-1") + headers


async def _dial(host: str, port: int, allowed: frozenset[tuple[str, int]]) -> _Pair:
    if (host, port) not in allowed:
        raise _Refused("403 Forbidden", f"{host}:{port} is not on the network allow-list")
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    except OSError:
        raise _Refused("502 Bad Gateway", f"{host} could not be resolved") from None
    addresses = list(dict.fromkeys(str(entry[4][0]) for entry in found))
    usable = [a for a in addresses if a == host or ipaddress.ip_address(a.partition("%")[0]).is_global]
    if not usable:
        raise _Refused("403 Forbidden", f"{host} does not resolve to a public address")
    for address in usable:
        with suppress(OSError):
            return await asyncio.open_connection(address, port)
    raise _Refused("502 Bad Gateway", f"{host}:{port} cannot be reached")


async def _pipe(one: _Pair, other: _Pair, *, idle_s: float | None = _IDLE_S) -> None:
    """Copy both ways until both have ended or one is idle for `idle_s`."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(_copy(one[0], other[1], idle_s))
            group.create_task(_copy(other[0], one[1], idle_s))
    except* (OSError, TimeoutError):
        pass  # closed below
    finally:
        other[1].close()


async def _copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter, idle_s: float | None) -> None:
    while True:
        async with asyncio.timeout(idle_s):
            data = await source.read(1 << 16)
            if not data:
                break
            sink.write(data)
            await sink.drain()
    if sink.can_write_eof():
        sink.write_eof()
