"""The tunnel to a service: what connects inside speaks with it as with a unix socket of its own machine."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

from hone.sandbox.conformance.registry import check
from hone.sandbox.contract import TUNNEL_PATH, Provider, ProviderUnavailable, Sandbox, SandboxSpec

Answer = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
_SIZE = 8 << 20  # bytes of a large transfer
_DIAL = (
    "import hashlib, socket, sys, threading\n"
    "def dial():\n"
    f"    s = socket.socket(socket.AF_UNIX); s.settimeout(60); s.connect({TUNNEL_PATH!r}); return s\n"
)


@contextlib.asynccontextmanager
async def _tunnelled(provider: Provider, answer: Answer) -> AsyncIterator[Sandbox | None]:
    """A sandbox whose tunnel leads to a service that answers so; None where the provider has no tunnels."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "service.sock"
        async with await asyncio.start_unix_server(answer, path):
            path.chmod(0o666)
            try:
                sandbox = await provider.start(SandboxSpec(tunnel=path))
            except ProviderUnavailable:
                yield None
                return
            async with sandbox:
                yield sandbox


async def _run(sandbox: Sandbox, program: str) -> str:
    result = await sandbox.exec(["python3", "-c", _DIAL + program], timeout_s=120)
    assert result.exit_code == 0, result.stderr.decode()
    return result.text


async def _upper(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    writer.write((await reader.readline()).upper())
    await writer.drain()
    writer.close()


@check
async def a_tunnel_reaches_the_service_it_names(provider: Provider) -> None:
    async with _tunnelled(provider, _upper) as sandbox:
        if sandbox:
            said = await _run(
                sandbox, "s = dial(); s.sendall(b'hello\\n'); print(s.makefile().read(), end='')"
            )
            assert said == "HELLO\n"


@check
async def many_connections_of_a_tunnel_are_told_apart(provider: Provider) -> None:
    program = (
        "ends = [dial() for _ in range(40)]\n"
        "for n, s in enumerate(ends): s.sendall(b'connection %d\\n' % n)\n"
        "print([s.makefile().read() for s in reversed(ends)] == "
        "['CONNECTION %d\\n' % n for n in reversed(range(40))])\n"
        "for s in ends: s.close()\n"
        "for n in range(100):\n"  # one after another, more than may be open at once
        "    s = dial(); s.sendall(b'%d\\n' % n); assert s.makefile().read() == '%d\\n' % n; s.close()\n"
    )
    async with _tunnelled(provider, _upper) as sandbox:
        if sandbox:
            assert await _run(sandbox, program) == "True\n"


@check
async def large_transfers_go_both_ways_through_a_tunnel_at_once(provider: Provider) -> None:
    got: asyncio.Future[str] = asyncio.get_running_loop().create_future()

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
            got.set_result(digest.hexdigest())
        writer.close()

    program = (
        "s = dial()\n"
        "def send():\n"
        f"    s.sendall(b'c' * {_SIZE}); s.shutdown(socket.SHUT_WR)\n"
        "t = threading.Thread(target=send); t.start(); h = hashlib.sha256()\n"
        "while data := s.recv(65536): h.update(data)\n"
        "t.join(); print(h.hexdigest(), end='')"
    )
    async with _tunnelled(provider, exchange) as sandbox:
        if sandbox:
            assert await _run(sandbox, program) == hashlib.sha256(b"s" * _SIZE).hexdigest()
            async with asyncio.timeout(60):
                assert await got == hashlib.sha256(b"c" * _SIZE).hexdigest()


@check
async def a_tunnels_connection_may_be_closed_half_way(provider: Provider) -> None:
    async def after_the_end(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked = await reader.read()  # all of it: the other side closes its half
        writer.write(b"got " + asked)
        await writer.drain()
        writer.close()

    program = (
        "s = dial(); s.sendall(b'a question'); s.shutdown(socket.SHUT_WR)\n"
        "print(s.makefile().read()); a, b = dial(), dial(); a.close()\n"  # one that says nothing and leaves
        "b.shutdown(socket.SHUT_WR); print(b.makefile().read())"
    )
    async with _tunnelled(provider, after_the_end) as sandbox:
        if sandbox:
            assert await _run(sandbox, program) == "got a question\ngot \n"


@check
async def a_service_that_hangs_up_is_seen_inside(provider: Provider) -> None:
    async def hang_up(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"bye")
        writer.close()

    program = (
        "s = dial(); print(s.recv(10), s.recv(10))\n"
        "try:\n"
        "    while True: s.sendall(b'x' * 65536)\n"
        "except OSError: print('closed')"
    )
    async with _tunnelled(provider, hang_up) as sandbox:
        if sandbox:
            assert await _run(sandbox, program) == "b'bye' b''\nclosed\n"


@check
async def a_tunnels_connection_that_is_not_read_holds_up_no_other(provider: Provider) -> None:
    held = asyncio.Event()

    async def read_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = await reader.readexactly(1)
        if first == b"q":
            held.set()
        else:
            await held.wait()
            while await reader.read(1 << 16):
                pass
        writer.write(b"ok")
        await writer.drain()
        writer.close()

    program = (
        "full = dial(); full.setblocking(False); sent = 0\n"
        "import select\n"
        "while select.select([], [full], [], 1)[1]: sent += full.send(b'x' * 65536)\n"
        "print(sent < 50_000_000)\n"
        "s = dial(); s.sendall(b'q'); print(s.makefile().read())\n"
        "full.setblocking(True); full.shutdown(socket.SHUT_WR); print(full.makefile().read())\n"
    )
    async with _tunnelled(provider, read_late) as sandbox:
        if sandbox:
            assert await _run(sandbox, program) == "True\nok\nok\n"
