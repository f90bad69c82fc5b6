"""Who may speak for a sandbox: the one that says the rollout's secret, once."""

from __future__ import annotations

import asyncio
import json
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from hone.agents.debugger.board import HELLO_MAX, HELLO_S, Line, LineBroken, Switchboard, open_switchboard
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings


async def _dial(board: Switchboard, hello: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_unix_connection(board.path)
    writer.write(hello)
    return reader, writer


def _frame(message: Any) -> bytes:
    body = json.dumps(message).encode()
    return struct.pack("!I", len(body)) + body


def test_a_secret_serves_once_and_what_does_not_say_one_is_closed():
    async def main() -> None:
        async with open_switchboard() as board:
            assert board.path.parent.stat().st_mode & 0o077 == 0
            with board.awaiting() as (secret, line), board.awaiting() as (other, unanswered):
                assert secret != other
                refused = [
                    _frame({"secret": "0" * 64}),
                    _frame({}),
                    _frame([secret]),
                    b"GET / HTTP/1.1\r\n\r\n",
                    struct.pack("!I", HELLO_MAX + 1),
                    struct.pack("!I", 4) + b"\xff\xfe{{",
                ]
                for hello in refused:
                    reader, writer = await _dial(board, hello)
                    async with asyncio.timeout(HELLO_S / 2):  # at once, and not when its time is over
                        assert await reader.read() == b""
                    writer.close()
                assert not line.done()
                reader, writer = await _dial(board, _frame({"secret": secret}))
                async with asyncio.timeout(10):
                    connected = await line
                again, twice = await _dial(board, _frame({"secret": secret}))
                assert await again.read() == b""
                await connected.send({"id": 1})
                assert await reader.readexactly(13) == _frame({"id": 1})
                assert not unanswered.done()
            async with asyncio.timeout(10):
                assert await reader.read() == b""  # with the rollout, its line ends
            late, last = await _dial(board, _frame({"secret": other}))
            assert await late.read() == b""
            for each in (writer, twice, last):
                each.close()
        left.append(board.path)

    left: list[Path] = []
    asyncio.run(main())
    assert not left[0].exists()


_DYING = """
import asyncio, os
from hone.agents.debugger.board import open_switchboard

async def main():
    async with open_switchboard():
        os.kill(os.getpid(), 9)

asyncio.run(main())
"""


@pytest.mark.sandbox
def test_what_a_killed_run_left_is_removed_by_the_next_provider(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
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
    [b"", b"\0\0", struct.pack("!I", 9 << 20), struct.pack("!I", 5) + b"{bad}", struct.pack("!I", 2) + b"[]"],
)
def test_what_is_no_frame_breaks_the_line(sent: bytes):
    async def main() -> None:
        reader = asyncio.StreamReader()
        reader.feed_data(sent)
        reader.feed_eof()
        with pytest.raises(LineBroken):
            await Line(reader, None).receive()  # type: ignore[arg-type]

    asyncio.run(main())


def test_deeply_nested_json_breaks_the_line():
    async def main() -> None:
        body = b'{"a":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
        reader = asyncio.StreamReader()
        reader.feed_data(struct.pack("!I", len(body)) + body)
        with pytest.raises(LineBroken):
            await Line(reader, None).receive()  # type: ignore[arg-type]

    asyncio.run(main())
