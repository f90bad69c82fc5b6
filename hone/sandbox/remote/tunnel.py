"""The tunnel of a sandbox on another machine: each connection travels over a WebSocket of its own.

    program in the sandbox -> node's socket -> WebSocket -> client -> client's service

The client keeps one idle WebSocket open. The node uses it for the next connection and sends the text OPEN,
upon which the client connects to its service and opens another idle one. Binary messages carry the bytes; an
empty one ends its direction. A connection whose WebSocket closes earlier is broken.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

PROTOCOL = "hone.tunnel.2"  # WebSocket subprotocol; version 1 carried all connections over one WebSocket
OPEN = "open"
MESSAGE_MAX = 32 << 10  # bytes


async def relay(
    reader: asyncio.StreamReader,
    writer: asyncio.StreamWriter,
    send: Callable[[bytes], Awaitable[None]],
    receive: Callable[[], Awaitable[bytes]],
) -> None:
    """Copy bytes both ways until both directions have ended, then close `writer`.

    Each direction waits for its slower end, so little is buffered. When either end breaks, the connection is
    aborted; `send` and `receive` raise OSError when the WebSocket is closed.
    """
    received_all, sent_all = asyncio.Event(), asyncio.Event()

    async def inward() -> None:
        while data := await receive():
            writer.write(data)
            await writer.drain()
        writer.write_eof()
        received_all.set()
        if not sent_all.is_set():  # else the other end may close the WebSocket before this end has looked
            await receive()  # raises when the WebSocket closes
            raise ConnectionResetError("the other end sent data after its end")

    try:
        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(inward())
            while data := await reader.read(MESSAGE_MAX):
                await send(data)
            await send(b"")
            sent_all.set()
            await received_all.wait()
            receiving.cancel()
    except* OSError:
        writer.transport.abort()
    finally:
        writer.close()
