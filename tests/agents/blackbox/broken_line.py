"""A unix socket that passes everything on to another one, and cuts some connections amid a reply."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path


@asynccontextmanager
async def broken_line(
    path: Path, service: Path, cut: Callable[[bytes], bool], cuts: list[bytes]
) -> AsyncGenerator[None]:
    """Joins `path` to `service`; a connection ends once `cut(what came back so far)`, which `cuts` gets."""

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
