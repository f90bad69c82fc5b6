"""A unix socket that forwards to another one and breaks some connections in the middle of a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path


@asynccontextmanager
async def broken_forward(
    path: Path, service: Path, cut: Callable[[bytes], bool], cuts: list[bytes]
) -> AsyncGenerator[None]:
    """Forward `path` to `service`; break a connection when `cut(data so far)`; append the data to `cuts`."""

    async def join(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        upstream, sink = await asyncio.open_unix_connection(service)

        async def there() -> None:
            while data := await reader.read(1 << 16):
                sink.write(data)
                await sink.drain()
            sink.write_eof()

        asking = asyncio.create_task(there())
        back = b""
        with suppress(OSError):
            while data := await upstream.read(256):
                back += data
                if cut(back):
                    cuts.append(back)
                    break
                writer.write(data)
                await writer.drain()
        asking.cancel()
        await asyncio.wait([asking])
        for one in (sink, writer):
            one.close()

    server = await asyncio.start_unix_server(join, path)
    try:
        yield
    finally:
        server.close()
