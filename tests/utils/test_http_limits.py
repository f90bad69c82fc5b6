"""No client keeps a connection, a descriptor or much memory of a server without using it. On virtual time."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

import pytest
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from hone.utils import http_connections, http_memory, http_server
from hone.utils.http_memory import MemoryBudget, ServerBusy
from tests.virtual_time import run

HEAD = b"POST /%s HTTP/1.1\r\nhost: h\r\ncontent-length: %d\r\n\r\n"
GET = b"GET /quick HTTP/1.1\r\nhost: h\r\n\r\n"
Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


async def quick(request: Request) -> Response:
    return PlainTextResponse("well")


async def patient(request: Request) -> Response:
    await asyncio.sleep(1000)
    return PlainTextResponse("well")


async def body(request: Request) -> Response:
    return PlainTextResponse(str(len(await http_server.read_body(request, 100 << 20))))


async def large(request: Request) -> Response:
    return PlainTextResponse("x" * (32 << 20))


async def stream(request: Request) -> Response:
    async def pieces() -> AsyncIterator[bytes]:
        for _ in range(1000):
            yield b"x" * (1 << 16)

    return StreamingResponse(pieces())


@asynccontextmanager
async def served(
    *more: Callable[[Request], Awaitable[Response]],
) -> AsyncIterator[Callable[[], Awaitable[Streams]]]:
    """Serve each endpoint under its name; gives a function that connects."""
    endpoints = (quick, patient, body, large, stream, *more)
    routes = [Route(f"/{each.__name__}", each, methods=["GET", "POST"]) for each in endpoints]

    def refuse(_: object, error: Exception) -> Response:
        return PlainTextResponse(str(error), 400)

    app = http_server.make_app(routes, error_response=refuse, expected=(ValueError, ServerBusy))
    opened: list[asyncio.StreamWriter] = []
    with http_server.listen("127.0.0.1", 0) as listener:
        port = listener.getsockname()[1]

        async def connect() -> Streams:
            client = socket.create_connection(("127.0.0.1", port))
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1 << 16)  # little waits in the kernel
            reader, writer = await asyncio.open_connection(sock=client, limit=1 << 16)
            opened.append(writer)
            return reader, writer

        async with http_server.serving(app, [listener]):
            yield connect
            for writer in opened:
                writer.transport.abort()


async def dribble(streams: Streams, data: bytes, every_s: float) -> None:
    """Send one byte after the other until the server closes the connection."""
    for byte in data:
        streams[1].write(bytes([byte]))
        await asyncio.sleep(every_s)
        if streams[0].at_eof() or streams[1].is_closing():
            return


async def is_closed_within(streams: Streams, limit_s: float) -> bool:
    try:
        async with asyncio.timeout(limit_s):
            while await streams[0].read(1 << 20):
                pass
        return True
    except TimeoutError:
        return False
    except ConnectionError:
        return True


async def answers(streams: Streams) -> bool:
    """Whether the server answers one request on a connection."""
    streams[1].write(GET)
    return b"well" in await streams[0].readuntil(b"well")


@pytest.mark.parametrize(
    ("before", "sent"),
    [
        (b"", b""),
        (b"", b"GET /quick HTTP/1.1\r\nhost: h\r\nx: "),
        (b"", b"\r\n" * 100),
        (b"", b"GET /" + b"a" * 100),
        (GET, b"G"),
        (GET, b"\r\n" * 100),
        (GET, b"GET /quick HTTP/1.1\r\n" + b"a: b\r\n" * 20),
        (HEAD % (b"quick", 1000), b"a" * 500),
        (HEAD % (b"quick", 1000), b""),
    ],
    ids=[
        *(
            "nothing",
            "half a head",
            "empty lines",
            "a long line",
            "half a second head",
            "empty lines after it",
        ),
        *("a slow second head", "a slow body after the reply", "no body after the reply"),
    ],
)
@pytest.mark.parametrize("every_s", [1.0, 7.0])
def test_client_that_sends_no_request_is_disconnected(before: bytes, sent: bytes, every_s: float) -> None:
    async def main() -> None:
        async with served() as connect:
            streams = await connect()
            if before:
                streams[1].write(before)
                await streams[0].readuntil(b"well")
            dribbling = asyncio.create_task(dribble(streams, sent, every_s))
            assert await is_closed_within(streams, 3 * http_connections.HEAD_S)
            dribbling.cancel()
            await asyncio.wait([dribbling])

    run(main())


def test_client_that_reads_nothing_is_disconnected() -> None:
    async def main() -> None:
        for name in (b"large", b"stream"):
            async with served() as connect:
                streams = await connect()
                streams[1].write(b"GET /%s HTTP/1.1\r\nhost: h\r\n\r\n" % name)
                await asyncio.sleep(4 * http_connections.UNREAD_S)
                assert await is_closed_within(streams, 1)

    run(main())


def test_patient_and_slow_honest_clients_are_served() -> None:
    """An idle connection is used again, a reply may take long, and a response may be read slowly."""

    async def main() -> None:
        async with served() as connect:
            idle = await connect()
            for _ in range(3):
                assert await answers(idle)
                await asyncio.sleep(60)
            waiting = await connect()
            waiting[1].write(b"GET /patient HTTP/1.1\r\nhost: h\r\n\r\n")
            assert await waiting[0].readuntil(b"well")
            assert await answers(waiting)
            for name, size in ((b"large", 32 << 20), (b"stream", 1000 << 16)):
                reader, writer = await connect()
                writer.write(b"GET /%s HTTP/1.1\r\nhost: h\r\n\r\n" % name)
                await reader.readuntil(b"\r\n\r\n")
                read = 0
                while read < size:
                    read += len(await reader.readexactly(1 << 18))
                    await asyncio.sleep(1)
            dribbled = await connect()
            await dribble(dribbled, GET, 0.3)
            assert await dribbled[0].readuntil(b"well")

    run(main())


def test_body_that_arrives_too_slowly_is_refused() -> None:
    async def main() -> None:
        async with served() as connect:
            for sent in (b"", b"x" * 100):
                reader, writer = await connect()
                writer.write(HEAD % (b"body", 1000))
                dribbling = asyncio.create_task(dribble((reader, writer), sent, 9))
                assert await reader.readuntil(b"did not arrive within 30 s")
                dribbling.cancel()
                await asyncio.wait([dribbling])
            reader, writer = await connect()  # a slow line
            writer.write(HEAD % (b"body", 8 << 20))
            for _ in range(64):
                writer.write(b"x" * (1 << 17))
                await writer.drain()
                await asyncio.sleep(1.5)
            assert await reader.readuntil(str(8 << 20).encode())

    run(main())


def test_connections_without_a_request_make_room_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one that has waited longest is closed, so that descriptors never run out."""
    monkeypatch.setattr(http_connections, "connections_max", lambda: 8)

    async def main() -> None:
        async with served() as connect:
            working = await connect()
            working[1].write(b"GET /patient HTTP/1.1\r\nhost: h\r\n\r\n")
            await asyncio.sleep(0.1)
            silent = [await connect() for _ in range(50)]
            honest = await connect()
            assert await answers(honest)
            closed = [await is_closed_within(streams, 0.5) for streams in silent]
            assert closed[:40] == [True] * 40
            assert sum(not each for each in closed) <= 8
            assert await working[0].readuntil(b"well")  # one with a request is never closed

    run(main())


# --- memory


@pytest.fixture
def budget(monkeypatch: pytest.MonkeyPatch) -> MemoryBudget:
    """Memory for two bodies of 400 KiB."""
    budget = MemoryBudget(1_000_000)
    monkeypatch.setattr(http_memory, "_budget", budget)
    return budget


def test_large_bodies_share_a_bounded_memory(budget: MemoryBudget) -> None:
    most = 0

    async def keep(request: Request) -> Response:
        nonlocal most
        await http_server.read_body(request, 100 << 20)
        most = max(most, budget.used)
        await asyncio.sleep(5)
        return PlainTextResponse("well")

    async def main() -> None:
        async with served(keep) as connect:

            async def send(size: int) -> None:
                reader, writer = await connect()
                writer.write(HEAD % (b"keep", size) + b"x" * size)
                assert await reader.readuntil(b"well")

            await asyncio.gather(*(send(400_000) for _ in range(10)), *(send(100) for _ in range(50)))
            assert most == 800_000
            await send(5_000_000)  # larger than all of it: alone
            assert budget.used == 0

    run(main())


def test_memory_is_given_back_however_a_request_ends(budget: MemoryBudget) -> None:
    async def main() -> None:
        async with served() as connect:
            for sent in (b"x" * 100, b"x" * 400_000):
                _, writer = await connect()
                writer.write(HEAD % (b"body", 400_000) + sent)
                await asyncio.sleep(1)
                writer.transport.abort()
            reader, writer = await connect()
            writer.write(HEAD % (b"body", 400_000))  # nothing follows
            assert await reader.readuntil(b"too slowly")
            await asyncio.sleep(1)
            assert budget.used == 0
            assert await answers(await connect())

    run(main())


def test_body_that_waits_too_long_for_memory_gets_an_error(budget: MemoryBudget) -> None:
    async def keep(request: Request) -> Response:
        await http_server.read_body(request, 100 << 20)
        await asyncio.sleep(10 * http_memory.WAIT_S)
        return PlainTextResponse("well")

    async def main() -> None:
        async with served(keep) as connect:
            for _ in range(2):
                (await connect())[1].write(HEAD % (b"keep", 400_000) + b"x" * 400_000)
            await asyncio.sleep(1)
            reader, writer = await connect()
            writer.write(HEAD % (b"body", 400_000) + b"x" * 400_000)
            assert await reader.readuntil(b"try again later")
            assert await answers(await connect())

    run(main())


def test_cancelled_wait_for_memory_leaves_the_queue() -> None:
    async def main() -> None:
        budget = MemoryBudget(10)
        assert await budget.take(8) == 8
        waiting = [asyncio.create_task(budget.take(size)) for size in (9, 2, 2)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        assert await asyncio.gather(waiting[1]) == [2]
        budget.give(8)
        assert await waiting[2] == 2
        assert budget.used == 4

    run(main())
