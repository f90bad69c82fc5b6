"""Tunnels of sandboxes on a node: what connects there reaches the client's service and ends with its line."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import aiohttp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.sandbox import SandboxSpec
from hone.sandbox.client.provider import pack_spec
from hone.sandbox.client.sandbox import RemoteSandbox
from hone.sandbox.client.tunnel import ClientTunnel
from hone.sandbox.network import CONNECTIONS_MAX, connect_unix
from hone.sandbox.remote.tunnel import MESSAGE_MAX, PROTOCOL, relay
from hone.sandbox.remote.wire import CreateRequest
from hone.utils.http_client import HttpClient, bearer
from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import NodeProvider, served
from tests.waiting import wait_until_async

Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Service:
    """Answers each line in capitals; counts its connections."""

    def __init__(self) -> None:
        self.open = 0

    async def answer_one(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        await writer.drain()

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.open += 1
        try:
            while line := await reader.readline():
                writer.write(line.upper())
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.open -= 1
            writer.close()


class Wire:
    """A relay of TCP connections to the node that can be cut, and stay so."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self._host, self._port = parts.hostname, parts.port
        self._ends: set[asyncio.StreamWriter] = set()
        self.up = True

    async def relay(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if not self.up:
            writer.transport.abort()
            return
        up_reader, up_writer = await asyncio.open_connection(self._host, self._port)
        self._ends |= {writer, up_writer}

        async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
            with contextlib.suppress(ConnectionError):
                while data := await source.read(1 << 16):
                    sink.write(data)
                    await sink.drain()
            sink.close()

        await asyncio.gather(copy(reader, up_writer), copy(up_reader, writer))

    def cut(self) -> None:
        for end in self._ends:
            end.transport.abort()
        self._ends.clear()


class Floor:
    """A node whose sandboxes do nothing, a client, and a service that a sandbox's tunnel leads to."""

    def __init__(self, provider: IdleProvider, client: NodeProvider, wire: Wire, path: Path) -> None:
        self.provider, self.client, self.wire, self.path = provider, client, wire, path
        self.service = Service()

    async def start(self) -> RemoteSandbox:
        return await self.client.start(SandboxSpec(tunnel=self.path))

    async def create(self, spec: SandboxSpec) -> HttpClient:
        """Start a sandbox by a request to the node; return a client of its URL."""
        node = self.client.client
        body, _ = await pack_spec(spec)
        made = await node.create(CreateRequest(spec=body, ttl_s=600.0), key="1")
        url = f"{node.url}/v1/sandboxes/{made.id}"
        return HttpClient(self.client.session, url, token=made.capability)

    async def dial(self) -> Ends:
        """As a program in the newest sandbox would."""
        newest = max(self.provider.living, key=lambda sandbox: int(sandbox.id.split("-")[1]))
        assert newest.spec.tunnel is not None
        return await connect_unix(newest.spec.tunnel)


@contextlib.asynccontextmanager
async def floor(folder: Path) -> AsyncIterator[Floor]:
    provider = IdleProvider()
    async with served(provider, folder / "state") as url:
        wire = Wire(url)
        relay = await asyncio.start_server(wire.relay, "127.0.0.1", 0)
        port = relay.sockets[0].getsockname()[1]
        async with relay, NodeProvider(f"http://127.0.0.1:{port}") as client:
            made = Floor(provider, client, wire, folder / "service")
            async with await asyncio.start_unix_server(made.service.answer, made.path):
                yield made


async def say(ends: Ends, text: str) -> str:
    ends[1].write(f"{text}\n".encode())
    return (await ends[0].readline()).decode().strip()


async def is_let_in(made: Floor) -> bool:
    """Whether the tunnel takes one more connection."""
    with contextlib.suppress(ConnectionError):
        return await say(await made.dial(), "again") == "AGAIN"
    return False


def test_connection_inside_reaches_the_clients_service(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            first, second = await made.dial(), await made.dial()
            assert await say(second, "hello") == "HELLO"
            assert await say(first, "there") == "THERE"
            second[1].close()
            await wait_until_async(lambda: made.service.open == 1)
            await sandbox.close()
            assert await first[0].read() == b""
            await wait_until_async(lambda: made.service.open == 0)
            assert list((tmp_path / "state").rglob("tunnels/*")) == []

    asyncio.run(run())


def test_broken_network_ends_connections_and_tunnel_reattaches(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            before = await made.dial()
            assert await say(before, "one") == "ONE"
            made.wire.up = False
            made.wire.cut()
            assert await before[0].read() == b""
            await wait_until_async(lambda: made.service.open == 0)
            waiting = await made.dial()  # while nobody is attached
            made.wire.up = True
            assert await say(waiting, "two") == "TWO"
            assert (await sandbox.exec(["still", "here"])).text == "still here"
            await sandbox.close()

    asyncio.run(run())


def test_closed_client_ends_every_connection(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            await made.start()
            ends = await made.dial()
            assert await say(ends, "hello") == "HELLO"
            await made.client.session.close()
            assert await ends[0].read() == b""
            await wait_until_async(lambda: made.service.open == 0)

    asyncio.run(run())


def test_connection_ends_when_the_service_is_missing(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            made.path.unlink()
            ends = await made.dial()
            assert await ends[0].read() == b""
            await sandbox.close()

    asyncio.run(run())


def test_ending_sandbox_has_no_connections(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            ends = await made.dial()
            assert await say(ends, "hello") == "HELLO"
            made.provider.may_close.clear()
            ending = asyncio.create_task(made.client.client.destroy(sandbox.id))
            assert await ends[0].read() == b""
            assert made.provider.living
            made.provider.may_close.set()
            await ending
            await sandbox.close()

    asyncio.run(run())


def test_connections_that_wait_for_a_client_are_bounded(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            before = await made.dial()
            assert await say(before, "hello") == "HELLO"
            made.wire.up = False
            made.wire.cut()
            assert await before[0].read() == b""  # the node knows
            before[1].close()
            waiting = [await made.dial() for _ in range(CONNECTIONS_MAX)]
            one_more = await made.dial()
            assert await one_more[0].read() == b""
            made.wire.up = True
            assert await say(waiting[-1], "patient") == "PATIENT"
            await sandbox.close()

    asyncio.run(run())


def test_more_connections_than_a_sandbox_may_have_are_closed(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.start()
            ends = [await made.dial() for _ in range(CONNECTIONS_MAX)]
            for number, each in enumerate(ends):
                assert await say(each, f"n{number}") == f"N{number}"
            one_more = await made.dial()
            assert await one_more[0].read() == b""
            ends[0][1].close()
            await wait_until_async(lambda: made.service.open == CONNECTIONS_MAX - 1)
            await wait_until_async(lambda: is_let_in(made))
            await sandbox.close()

    asyncio.run(run())


@pytest.mark.parametrize(
    ("tunnel", "capability", "name", "protocol", "status"),
    [
        (True, "wrong", "", PROTOCOL, 401),
        (True, "", "", PROTOCOL, 401),
        (False, None, "", PROTOCOL, 410),
        (True, None, "0", PROTOCOL, 410),
        (True, None, "", "old", 400),
    ],
)
def test_tunnel_needs_capability_sandbox_and_protocol(
    tmp_path: Path, tunnel: bool, capability: str | None, name: str, protocol: str, status: int
) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.create(SandboxSpec(tunnel=made.path if tunnel else None))
            headers = sandbox.headers if capability is None else bearer(capability)
            with pytest.raises(aiohttp.WSServerHandshakeError) as refused:
                await made.client.session.ws_connect(
                    f"{sandbox.url}{name}/tunnel", headers=headers, protocols=(protocol,)
                )
            assert refused.value.status == status

    asyncio.run(run())


def test_data_on_an_idle_websocket_closes_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with floor(tmp_path) as made:
            sandbox = await made.create(SandboxSpec(tunnel=made.path))
            tunnel = ClientTunnel(sandbox, made.path)
            await tunnel.open()
            line = await made.client.session.ws_connect(
                f"{sandbox.url}/tunnel", headers=sandbox.headers, protocols=(PROTOCOL,)
            )
            await line.send_bytes(b"too early")
            closed = await line.receive()
            assert closed.type in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED)
            assert await say(await made.dial(), "hello") == "HELLO"
            await tunnel.close()

    asyncio.run(run())


def test_unread_connection_stops_its_sender_and_no_other(tmp_path: Path) -> None:
    """The service floods a program that reads nothing."""
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        with contextlib.suppress(ConnectionError):
            await made.service.answer_one(reader, writer)
            while (await reader.readline()).startswith(b"flood"):
                while True:
                    writer.write(b"x" * MESSAGE_MAX)
                    await writer.drain()
                    sent += MESSAGE_MAX
        writer.close()

    async def run() -> None:
        nonlocal made
        async with floor(tmp_path) as made:
            made.path.unlink()
            async with await asyncio.start_unix_server(flood, made.path):
                sandbox = await made.start()
                unread, other = await made.dial(), await made.dial()
                assert await say(unread, "hello") == "HELLO"
                unread[1].write(b"flood\n")
                await wait_until_async(lambda: sent > 0)
                assert await say(other, "still here") == "STILL HERE"
                assert sent < 32 << 20  # what sockets and buffers on the way hold
                await sandbox.close()

    made: Floor
    asyncio.run(run())


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 1 << 19), st.integers(1, 1 << 17)), min_size=1, max_size=4),
    st.integers(0, 2**32 - 1),
)
def test_every_byte_arrives_once_and_in_order(loads: list[tuple[int, int]], seed: int) -> None:
    """Connections that send `size` bytes in pieces of `piece`, both ways, through two relays."""

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            exchanges = []
            for size, piece in loads:
                there, back = asyncio.Queue[bytes](4), asyncio.Queue[bytes](4)
                (reader, writer), near = await _pair()
                far, service = await _pair()
                group.create_task(relay(*near, there.put, back.get))
                group.create_task(relay(*far, back.put, there.get))
                group.create_task(_echo(*service))
                data = random.Random(seed).randbytes(size)
                exchanges.append(group.create_task(_exchange(reader, writer, data, piece)))
            for exchange in exchanges:
                assert await exchange

    asyncio.run(run())


def test_broken_websocket_aborts_the_connection() -> None:
    async def send(data: bytes) -> None:
        raise ConnectionResetError

    async def receive() -> bytes:
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        (reader, writer), inner = await _pair()
        writer.write(b"data")
        await relay(*inner, send, receive)
        with contextlib.suppress(ConnectionError):
            assert await reader.read() == b""
        writer.close()

    asyncio.run(run())


def test_websocket_closed_after_both_ends_loses_no_data() -> None:
    """The other end closes as soon as it has both ends, while this end still has data to deliver."""
    data = random.Random(0).randbytes(4 << 20)
    sent_end = asyncio.Event()
    messages = [data, b""]

    async def send(data: bytes) -> None:
        assert data == b""
        sent_end.set()

    async def receive() -> bytes:
        await sent_end.wait()
        if not messages:
            raise ConnectionResetError
        return messages.pop(0)

    async def run() -> None:
        (reader, writer), inner = await _pair()
        writer.write_eof()
        inner[1].transport.set_write_buffer_limits(high=len(data))
        await relay(*inner, send, receive)
        assert await reader.read() == data
        writer.close()

    asyncio.run(run())


async def _echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(1 << 14):
        writer.write(data)
        await writer.drain()
    writer.close()


async def _exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes, piece: int
) -> bool:
    async def send() -> None:
        for start in range(0, len(data), piece):
            writer.write(data[start : start + piece])
            await writer.drain()
        writer.write_eof()

    sending = asyncio.create_task(send())
    echoed = await reader.read(-1)
    await sending
    writer.close()
    return echoed == data


async def _pair() -> tuple[Ends, Ends]:
    """The two ends of a socket pair, as streams."""
    one, other = socket.socketpair()
    return await asyncio.open_connection(sock=one), await asyncio.open_connection(sock=other)
