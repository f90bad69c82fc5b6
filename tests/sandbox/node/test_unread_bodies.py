"""A body that is refused is refused before any of it is read: these clients send none of it."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import TOKEN, served
from tests.sandbox.pool.simulated import serving_pool

LARGE = 40 << 20  # bytes
ENDPOINTS = (
    *("POST /v1/sandboxes", "POST /v1/renewals", "POST /v1/sandboxes/{id}/exec"),
    *("PUT /v1/sandboxes/{id}/files?path=a", "PUT /v1/sandboxes/{id}/archive?path=a"),
    *("PUT /v1/sandboxes/{id}/content/" + "0" * 64, "POST /v1/sandboxes/{id}/start"),
    *("POST /container/create", "POST /container/exec", "POST /container/diff"),
    *("POST /container/evaluate", "POST /container/destroy"),
)
POOL_ENDPOINTS = (
    *("POST /v1/leases", "POST /v1/heartbeats", "POST /v1/nodes", "POST /allocate", "POST /heartbeat"),
    *("POST /close", "POST /exec", "POST /diff", "POST /evaluate"),
)


async def status_of(url: str, endpoint: str, token: str, *headers: str, size: int = LARGE) -> int:
    """The status of a request whose body of `size` bytes never arrives."""
    host, port = url.removeprefix("http://").split(":")
    head = [f"{endpoint} HTTP/1.1", "Host: h", f"Authorization: Bearer {token}", f"Content-Length: {size}"]
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write("\r\n".join([*head, *headers, "", ""]).encode())
    status = int((await reader.readuntil(b"\r\n\r\n"))[9:12])
    writer.transport.abort()
    return status


async def status_at_node(url: str, endpoint: str, token: str, *headers: str, size: int = LARGE) -> int:
    _, _, sandbox_id = (await create(url)).partition('"id":"')
    return await status_of(url, endpoint.format(id=sandbox_id[:24]), token, *headers, size=size)


async def create(url: str) -> str:
    """The reply to a request for a sandbox."""
    host, port = url.removeprefix("http://").split(":")
    body = '{"spec": {}}'
    reader, writer = await asyncio.open_connection(host, int(port))
    head = f"POST /v1/sandboxes HTTP/1.1\r\nHost: h\r\nAuthorization: Bearer {TOKEN}\r\n"
    writer.write(f"{head}Connection: close\r\nContent-Length: {len(body)}\r\n\r\n{body}".encode())
    reply = (await reader.read()).decode()
    writer.close()
    return reply


def at_node(folder: Path, endpoint: str, token: str, *headers: str, size: int = LARGE) -> int:
    async def run() -> int:
        async with served(IdleProvider(), folder) as url:
            return await status_at_node(url, endpoint, token, *headers, size=size)

    return asyncio.run(run())


@pytest.mark.parametrize("endpoint", ENDPOINTS)
def test_node_refuses_a_body_without_a_token_unread(endpoint: str, tmp_path: Path) -> None:
    assert at_node(tmp_path, endpoint, "wrong") == 401


@pytest.mark.parametrize(
    "endpoint", [each for each in ENDPOINTS if each.startswith("POST") and not each.endswith("/start")]
)
def test_node_refuses_a_body_beyond_its_limit_unread(endpoint: str, tmp_path: Path) -> None:
    assert at_node(tmp_path, endpoint, TOKEN) == 413


def test_node_refuses_a_standard_input_beyond_its_limit_unread(tmp_path: Path) -> None:
    for size in (73 << 20, 1 << 70, -1):
        input_bytes = f"Hone-Input-Bytes: {size}"
        assert at_node(tmp_path, "POST /v1/sandboxes/{id}/exec", TOKEN, input_bytes, size=80 << 20) == 413


@pytest.mark.parametrize("token", ["wrong", "t"])
@pytest.mark.parametrize("endpoint", POOL_ENDPOINTS)
def test_pool_refuses_a_body_unread(endpoint: str, token: str, tmp_path: Path) -> None:
    """Without a token, and beyond the limit with one; /v1/nodes takes the nodes' token alone."""

    async def run() -> int:
        async with serving_pool(tmp_path / "store", []) as (url, _):
            return await status_of(url, endpoint, token)

    assert asyncio.run(run()) == (401 if token == "wrong" or "nodes" in endpoint else 413)
