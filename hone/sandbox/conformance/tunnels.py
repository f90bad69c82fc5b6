"""The tunnel to a service: a program inside speaks with it as with a unix socket of its own machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from hone.sandbox.conformance.suite import check
from hone.sandbox.contract import TUNNEL_PATH, Provider, ProviderUnavailable, Sandbox, SandboxSpec

Service = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_SIZE = 8 << 20  # bytes of a large transfer
_CONNECT = (
    "import hashlib, socket, sys, threading\n"
    "def connect():\n"
    f"    s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect({TUNNEL_PATH!r}); return s\n"
)


@contextlib.asynccontextmanager
async def _with_tunnel(provider: Provider, service: Service) -> AsyncIterator[Sandbox]:
    """A sandbox whose tunnel leads to a service. Skips the check when the provider has no tunnels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "service.sock"
        async with await asyncio.start_unix_server(service, path):
            path.chmod(0o666)
            try:
                sandbox = await provider.start(SandboxSpec(tunnel=path))
            except ProviderUnavailable as error:
                pytest.skip(f"the provider has no tunnels: {error}")
            async with sandbox:
                yield sandbox


async def _run(sandbox: Sandbox, program: str) -> str:
    result = await sandbox.exec(["python3", "-c", _CONNECT + program], timeout_s=120)
    assert result.exit_code == 0, result.stderr.decode()
    return result.text


async def _reply(writer: asyncio.StreamWriter, data: bytes) -> None:
    writer.write(data)
    await writer.drain()
    writer.close()


async def _upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await _reply(writer, (await reader.readline()).upper())


@check()
async def a_tunnel_reaches_its_service(provider: Provider) -> None:
    async with _with_tunnel(provider, _upper) as sandbox:
        program = "s = connect(); s.sendall(b'hello\\n'); print(s.makefile().read(), end='')"
        assert await _run(sandbox, program) == "HELLO\n"


@check()
async def many_connections_of_a_tunnel_stay_separate(provider: Provider) -> None:
    program = (
        "ends = [connect() for _ in range(40)]\n"
        "for n, s in enumerate(ends): s.sendall(b'connection %d\\n' % n)\n"
        "print([s.makefile().read() for s in reversed(ends)] == "
        "['CONNECTION %d\\n' % n for n in reversed(range(40))])\n"
        "for s in ends: s.close()\n"
        "for n in range(100):\n"  # one after another, more than may be open at once
        "    s = connect(); s.sendall(b'%d\\n' % n); assert s.makefile().read() == '%d\\n' % n; s.close()\n"
    )
    async with _with_tunnel(provider, _upper) as sandbox:
        assert await _run(sandbox, program) == "True\n"


@check()
async def large_transfers_go_both_ways_through_a_tunnel_at_once(provider: Provider) -> None:
    received: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    async def exchange(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        async def send() -> None:
            for _ in range(_SIZE >> 16):
                writer.write(b"s" * (1 << 16))
                await writer.drain()
            writer.write_eof()

        async with asyncio.TaskGroup() as group:
            group.create_task(send())
            digest = hashlib.sha256()
            while data := await reader.read(1 << 16):
                digest.update(data)
            received.set_result(digest.hexdigest())
        writer.close()

    program = (
        "s = connect()\n"
        "def send():\n"
        f"    s.sendall(b'c' * {_SIZE}); s.shutdown(socket.SHUT_WR)\n"
        "t = threading.Thread(target=send); t.start(); h = hashlib.sha256()\n"
        "while data := s.recv(65536): h.update(data)\n"
        "t.join(); print(h.hexdigest(), end='')"
    )
    async with _with_tunnel(provider, exchange) as sandbox:
        assert await _run(sandbox, program) == hashlib.sha256(b"s" * _SIZE).hexdigest()
        async with asyncio.timeout(60):
            assert await received == hashlib.sha256(b"c" * _SIZE).hexdigest()


@check()
async def a_tunnels_connection_may_be_closed_half_way(provider: Provider) -> None:
    async def reply_at_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await _reply(writer, b"got " + await reader.read())  # all of it: the other side closes its half

    program = (
        "s = connect(); s.sendall(b'a question'); s.shutdown(socket.SHUT_WR)\n"
        "print(s.makefile().read()); a, b = connect(), connect(); a.close()\n"  # a leaves without a word
        "b.shutdown(socket.SHUT_WR); print(b.makefile().read())"
    )
    async with _with_tunnel(provider, reply_at_the_end) as sandbox:
        assert await _run(sandbox, program) == "got a question\ngot \n"


@check()
async def a_service_that_hangs_up_is_seen_inside(provider: Provider) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    program = (
        "s = connect(); print(s.recv(10), s.recv(10))\n"
        "try:\n"
        "    while True: s.sendall(b'x' * 65536)\n"
        "except OSError: print('closed')"
    )
    async with _with_tunnel(provider, hang_up) as sandbox:
        assert await _run(sandbox, program) == "b'bye' b''\nclosed\n"


@check()
async def a_tunnels_connection_that_is_not_read_holds_up_no_other(provider: Provider) -> None:
    may_read = asyncio.Event()

    async def read_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first == b"q":
            may_read.set()
        else:
            await may_read.wait()
            while await reader.read(1 << 16):
                pass
        await _reply(writer, b"ok")

    program = (
        "full = connect(); full.setblocking(False); sent = 0\n"
        "import select\n"
        "while select.select([], [full], [], 1)[1]: sent += full.send(b'x' * 65536)\n"
        "print(sent < 50_000_000)\n"
        "s = connect(); s.sendall(b'q'); print(s.makefile().read())\n"
        "full.setblocking(True); full.shutdown(socket.SHUT_WR); print(full.makefile().read())\n"
    )
    async with _with_tunnel(provider, read_late) as sandbox:
        assert await _run(sandbox, program) == "True\nok\nok\n"
