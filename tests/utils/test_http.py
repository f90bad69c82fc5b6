"""The HTTP client and server that every room shares."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from hone.utils import http_server
from hone.utils.http_client import HttpClient, HttpError, new_session
from hone.utils.http_server import LimitConcurrency, RequireToken, while_connected


def _error_response(_, error: Exception) -> Response:
    return JSONResponse({"error": f"{type(error).__name__}: {error}"}, 418)


@asynccontextmanager
async def served(
    *endpoints: Callable, wrap: Callable = lambda app: app, token: str = ""
) -> AsyncIterator[HttpClient]:
    """Serve each endpoint under its own name, for GET and POST."""
    routes = [Route(f"/{end.__name__}", end, methods=["GET", "POST"]) for end in endpoints]
    app = http_server.make_app(routes, error_response=_error_response, expected=(ValueError,))
    with http_server.listen("127.0.0.1", 0) as listener:
        async with http_server.serving(wrap(app), [listener]), new_session() as session:
            yield HttpClient(session, http_server.address(listener), token=token)


async def echo(request: Request) -> Response:
    return Response(await http_server.read_body(request, 1000))


def test_json_goes_both_ways() -> None:
    async def main() -> None:
        async with served(echo) as client:
            assert await client.request_json("POST", "/echo", {"a": [1]}, timeout_s=60) == {"a": [1]}
            assert await client.request_json("POST", "/echo", timeout_s=60) is None

    asyncio.run(main())


def test_refusal_carries_status_and_explanation() -> None:
    async def refuse(request: Request) -> Response:
        raise ValueError("no such thing")

    async def main() -> None:
        async with served(refuse, echo) as client:
            for path, status, detail in (
                ("/refuse", 418, "ValueError: no such thing"),
                ("/nowhere", 418, "HTTPException: 404: Not Found"),
            ):
                with pytest.raises(HttpError) as raised:
                    await client.request("GET", f"{path}?token=secret", timeout_s=60)
                assert (raised.value.status, raised.value.detail) == (status, detail)
                assert "secret" not in str(raised.value)
            with pytest.raises(HttpError, match="larger than 1000 bytes"):
                await client.request("POST", "/echo", body=b"x" * 1001, timeout_s=60)

    asyncio.run(main())


def test_unreachable_server_has_no_status() -> None:
    async def main() -> None:
        with http_server.listen("127.0.0.1", 0) as listener:
            url = http_server.address(listener)
        async with new_session() as session:
            with pytest.raises(HttpError) as raised:
                await HttpClient(session, url).request("GET", "/", timeout_s=60)
            assert raised.value.status is None

    asyncio.run(main())


def test_idempotent_request_is_sent_again_until_a_reply_arrives() -> None:
    left = 3

    async def cut(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal left
        await reader.readuntil(b"\r\n\r\n")
        left -= 1
        if not left:
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nok")
            await writer.drain()
        writer.close()

    async def main() -> None:
        server = await asyncio.start_server(cut, "127.0.0.1", 0)
        async with server, new_session() as session:
            client = HttpClient(session, http_server.address(server.sockets[0]))
            with pytest.raises(HttpError):
                await client.request("POST", "/", timeout_s=60)
            assert await client.request("POST", "/", timeout_s=60, idempotent=True) == b"ok"

    asyncio.run(main())


def test_error_is_translated() -> None:
    async def main() -> None:
        async with served() as client:
            translating = HttpClient(client.session, client.url, translate=lambda e: KeyError(e.status))
            with pytest.raises(KeyError, match="418"):
                await translating.request("GET", "/nowhere", timeout_s=60)
            with pytest.raises(KeyError, match="418"):
                async with translating.stream("GET", "/nowhere", timeout_s=60):
                    pass

    asyncio.run(main())


def test_token_is_required_except_on_exempt_paths() -> None:
    def guard(app: object) -> RequireToken:
        return RequireToken(app, token="t", denied=lambda: Response(status_code=401), exempt=("/echo",))

    async def main() -> None:
        for token, status in (("", 401), ("wrong", 401), ("t", 418)):
            async with served(echo, wrap=guard, token=token) as client:
                assert await client.request("GET", "/echo", timeout_s=60) == b""
                with pytest.raises(HttpError) as raised:
                    await client.request("GET", "/other", timeout_s=60)
                assert raised.value.status == status

    asyncio.run(main())


def test_requests_beyond_the_limit_are_refused() -> None:
    running, done = asyncio.Event(), asyncio.Event()

    async def wait(request: Request) -> Response:
        running.set()
        await done.wait()
        return Response()

    def limit(app: object) -> LimitConcurrency:
        return LimitConcurrency(app, limit=1, busy=lambda: Response(status_code=503), exempt=("/echo",))

    async def main() -> None:
        async with served(wait, echo, wrap=limit) as client, asyncio.TaskGroup() as group:
            first = group.create_task(client.request("GET", "/wait", timeout_s=60))
            await running.wait()
            with pytest.raises(HttpError) as raised:
                await client.request("GET", "/wait", timeout_s=60)
            assert raised.value.status == 503
            await client.request("GET", "/echo", timeout_s=60)
            done.set()
            await first

    asyncio.run(main())


def test_operation_ends_when_its_client_disconnects() -> None:
    started, cancelled = asyncio.Event(), asyncio.Event()

    async def forever() -> Response:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cancelled.set()
        raise AssertionError

    async def wait(request: Request) -> Response:
        return await while_connected(request.receive, forever())

    async def main() -> None:
        async with served(wait) as client:
            asking = asyncio.create_task(client.request("GET", "/wait", timeout_s=60))
            await started.wait()
            asking.cancel()
            await cancelled.wait()

    asyncio.run(main())


def test_server_on_a_unix_socket_stops_after_its_cleanup(tmp_path: Path) -> None:
    import socket

    stopped = False

    async def stop() -> None:
        nonlocal stopped
        stopped = True

    async def main() -> None:
        listener = socket.socket(socket.AF_UNIX)
        listener.bind(str(tmp_path / "s"))
        app = http_server.make_app([Route("/echo", echo)], error_response=_error_response)
        async with http_server.serving(app, [listener], on_stop=stop):
            reader, writer = await asyncio.open_unix_connection(tmp_path / "s")
            writer.write(b"GET /other HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n")
            reply = await reader.read()
            writer.close()
        assert json.loads(reply.partition(b"\r\n\r\n")[2]) == {"error": "HTTPException: 404: Not Found"}

    asyncio.run(main())
    assert stopped


def test_exception_of_the_block_is_not_wrapped() -> None:
    async def main() -> None:
        async with served(echo):
            raise KeyError("the block")

    with pytest.raises(KeyError, match="the block"):
        asyncio.run(main())


@pytest.mark.parametrize(
    "head",
    [
        b"/" + b"x" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"/echo HTTP/1.1\r\nX: " + b"x" * 70_000 + b"\r\n\r\n",
        b"/echo HTTP/1.1\r\n" + b"X: y\r\n" * 20_000 + b"\r\n",
        b"/echo HTTP/1.1\r\nX: " + b"x" * 500_000,  # a header that does not end
    ],
    ids=["path", "header", "headers", "endless"],
)
def test_large_request_head_is_refused(head: bytes) -> None:
    async def main() -> None:
        app = http_server.make_app([Route("/echo", echo)], error_response=_error_response)
        with http_server.listen("127.0.0.1", 0) as listener:
            async with http_server.serving(app, [listener]):
                reader, writer = await asyncio.open_connection(*listener.getsockname()[:2])
                writer.write(b"GET " + head)
                with contextlib.suppress(ConnectionError):  # unread data resets the connection
                    reply = await reader.read()
                    assert reply == b"" or reply.startswith(b"HTTP/1.1 400")
                writer.close()

    asyncio.run(main())
