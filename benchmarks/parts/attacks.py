"""Attacks on an HTTP server of this machine: odd messages, silent connections, bodies of many MiB."""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.parts.odd_messages import Endpoint, Message, draw

MIB = 1 << 20
_AT_ONCE = 16  # odd messages
_REPLY_S = 30.0
_LEAVE_S = 3.0  # for servers to close what clients have left
# What undoes a request that was valid: its path -> method and path, and the field of the reply that names it.
_UNDO = {
    "/v1/sandboxes": ("DELETE", "/v1/sandboxes/{}", "id"),
    "/container/create": ("POST", "/container/destroy", "container_id"),
    "/v1/leases": ("DELETE", "/v1/leases/{}", "lease_id"),
    "/allocate": ("POST", "/close", "lease_id"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A server, and what an attacker knows of it."""

    name: str
    port: int
    token: str
    prefix: str = ""  # of all paths
    own: str = ""  # id of a sandbox of the attacker


async def send(target: Target, message: Message, token: str) -> tuple[int, bytes]:
    """Send all of a message, even after the reply; return its status and body, (0, b"") without a reply."""
    path = target.prefix + message.path.replace("{own}", target.own)
    head = (
        f"{message.method} {path} HTTP/1.1\r\nHost: h\r\n"
        f"Authorization: Bearer {token}\r\nContent-Length: {len(message.body)}\r\n\r\n"
    )
    reader, writer = await asyncio.open_connection("127.0.0.1", target.port)
    sending = asyncio.create_task(_push(writer, head.encode(), message.body))
    status, body = 0, b""
    with contextlib.suppress(ConnectionError, TimeoutError, asyncio.IncompleteReadError):
        async with asyncio.timeout(_REPLY_S):
            reply = await reader.readuntil(b"\r\n\r\n")
            size = int(reply.lower().partition(b"content-length: ")[2].partition(b"\r")[0] or b"0")
            status, body = int(reply[9:12]), await reader.readexactly(size)
            await sending
    sending.cancel()
    await asyncio.wait([sending])
    writer.transport.abort()
    return status, body


async def _push(writer: asyncio.StreamWriter, head: bytes, body: bytes) -> None:
    with contextlib.suppress(ConnectionError):
        writer.write(head)
        for start in range(0, len(body), 1 << 18):
            writer.write(body[start : start + (1 << 18)])
            await writer.drain()


async def fuzz(target: Target, endpoints: Sequence[Endpoint], count: int, seed: int) -> Counter[int]:
    """Send `count` odd messages, every second one with the token; return how often each status came."""
    dice = random.Random(seed)
    left = iter(range(count))
    statuses: Counter[int] = Counter()

    async def worker() -> None:
        for number in left:
            message = draw(dice, endpoints)
            status, body = await send(target, message, target.token if number % 2 else "wrong")
            statuses[status] += 1
            if status == 200 and message.path in _UNDO:
                await _undo(target, message.path, json.loads(body))

    await asyncio.gather(*(worker() for _ in range(_AT_ONCE)))
    return statuses


async def _undo(target: Target, path: str, reply: dict[str, str]) -> None:
    method, undo, name = _UNDO[path]
    body = json.dumps({name: reply[name]}).encode() if method == "POST" else b""
    await send(target, Message(method, undo.format(reply[name]), body), target.token)


async def hold_silent(target: Target, count: int, seconds: float) -> Counter[int]:
    """Hold `count` connections that request nothing, and send bytes that are no request on as many others."""
    writers: list[asyncio.StreamWriter] = []
    for number in range(count):
        _, writer = await asyncio.open_connection("127.0.0.1", target.port)
        if number % 2:
            writer.write(b"GET /healthz HTTP/1.1\r\nx: ")
        writers.append(writer)
    await asyncio.sleep(seconds)
    for writer in writers:
        writer.transport.abort()
    await asyncio.sleep(_LEAVE_S)
    return Counter({0: count})


async def send_together(
    target: Target, messages: Sequence[Message], token: str, seconds: float
) -> Counter[int]:
    """Send all messages at once, again and again for `seconds`; return how often each status came."""
    statuses: Counter[int] = Counter()
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        replies = await asyncio.gather(*(send(target, message, token) for message in messages))
        statuses.update(status for status, _ in replies)
    return statuses
