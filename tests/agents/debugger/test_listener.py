"""Authentication of the servers inside sandboxes: a rollout's secret, once."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from pathlib import Path

import pytest

from hone.agents.debugger.client import (
    MESSAGE_MAX,
    SECRET_BYTES,
    Connection,
    ConnectionBroken,
    Listener,
    open_listener,
)
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from tests.virtual_time import run


async def _connect(listener: Listener, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(listener.path)
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize(
    "data", [b"", b"short", b"0" * SECRET_BYTES, b"\xff" * SECRET_BYTES, b"0" * 100_000], ids=len
)
def test_connection_without_a_secret_is_closed(data: bytes) -> None:
    async def main() -> None:
        async with open_listener() as listener:
            with listener.expect() as (_, connected):
                reader, writer = await _connect(listener, data)
                assert await reader.read() == b""
                assert not connected.done()
                writer.close()

    run(main())


def test_secret_is_valid_once_and_until_the_rollout_ends() -> None:
    async def main() -> Path:
        async with open_listener() as listener:
            assert listener.path.parent.stat().st_mode & 0o077 == 0
            with listener.expect() as (secret, connected), listener.expect() as (other, unanswered):
                assert secret != other
                reader, first = await _connect(listener, secret.encode())
                await (await connected).send({"id": 1})
                assert json.loads(await reader.readline()) == {"id": 1}
                again, second = await _connect(listener, secret.encode())
                assert await again.read() == b""
                assert not unanswered.done()
            assert await reader.read() == b""
            late, third = await _connect(listener, other.encode())
            assert await late.read() == b""
            for writer in (first, second, third):
                writer.close()
            return listener.path

    assert not run(main()).exists()


_DYING = """
import asyncio, os
from hone.agents.debugger.client import open_listener

async def main():
    async with open_listener():
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.sandbox
def test_directory_of_a_killed_run_is_removed_by_the_next_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))
    subprocess.run([sys.executable, "-c", _DYING], check=False)
    assert len(list(tmp_path.rglob("debugger"))) == 1

    async def main() -> None:
        async with make_provider(SandboxSettings()):
            pass

    asyncio.run(main())
    assert list(tmp_path.rglob("debugger")) == []


@pytest.mark.parametrize(
    "sent",
    [b"", b"{", b"{bad}\n", b"[]\n", b" " * (MESSAGE_MAX + 1), b'{"a":' + b"[" * 100_000 + b"\n"],
    ids=["nothing", "no line end", "bad JSON", "no object", "too long", "too deep"],
)
def test_invalid_message_breaks_the_connection(sent: bytes) -> None:
    async def main() -> None:
        reader = asyncio.StreamReader(limit=MESSAGE_MAX)
        reader.feed_data(sent)
        reader.feed_eof()
        with pytest.raises(ConnectionBroken):
            await Connection(reader, None).receive()  # type: ignore[arg-type]

    run(main())


def test_text_of_a_message_can_be_encoded() -> None:
    async def main() -> None:
        reader = asyncio.StreamReader(limit=MESSAGE_MAX)
        reader.feed_data(b'{"text": "\\ud800"}\n')
        assert await Connection(reader, None).receive() == {"text": "?"}  # type: ignore[arg-type]

    run(main())
