"""A download believes nothing that a sandbox sends."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.sandbox import SandboxError, trees
from hone.sandbox.init import transfer
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire

Answers = dict[int, Callable[[bytes], bytes]]  # kind of request -> body of the answer

TOP = wire.pack(wire.ENTRY.pack(b"d", 0o755, 0), b"", b"")


def entry(name: bytes, *, kind: bytes = b"f", size: int = 1, mode: int = 0o644, link: bytes = b"") -> bytes:
    return wire.pack(wire.ENTRY.pack(kind, mode, size), name, link)


def _download(answers: Answers, target: Path) -> None:
    """Download from a supervisor that answers as told."""

    async def answer(peer: socket.socket) -> None:
        reader, writer = await asyncio.open_connection(sock=peer)
        try:
            while True:
                size, kind, request = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
                body = answers[kind](await reader.readexactly(size))
                writer.write(wire.HEADER.pack(len(body), wire.DATA_KIND, request) + body)
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    async def run() -> None:
        ours, theirs = socket.socketpair()
        ours.setblocking(False)
        answering = asyncio.create_task(answer(theirs))
        _, channel = await asyncio.get_running_loop().create_unix_connection(Channel, sock=ours)
        try:
            await transfer.download(channel, b"/tree", target)
        finally:
            channel.abandon("the test is over")
            await answering

    asyncio.run(run())


def _listing(*entries: bytes) -> Callable[[bytes], bytes]:
    return lambda path: TOP + b"".join(entries) if path.rstrip(b"/") == b"/tree" else TOP


def test_small_files_share_a_frame(tmp_path: Path) -> None:
    names = [b"a", b"b", b"c"]
    answers: Answers = {
        wire.LIST_KIND: _listing(*(entry(name, mode=0o4777) for name in names)),
        wire.READ_FILES_KIND: lambda _: wire.pack(b"A", b"B", b"C"),
    }
    _download(answers, tmp_path / "out")
    assert {path.name: path.read_text() for path in (tmp_path / "out").iterdir()} == {
        "a": "A",
        "b": "B",
        "c": "C",
    }
    assert {path.stat().st_mode & 0o7777 for path in (tmp_path / "out").iterdir()} == {0o755}


@pytest.mark.parametrize(
    ("listing", "contents"),
    [
        ([entry(b"../out")], [b"x"]),
        ([entry(b"/etc/passwd")], [b"x"]),
        ([entry(b"..")], [b"x"]),
        ([entry(b"")], [b"x"]),
        ([entry(b"nu\0ll")], [b"x"]),
        ([entry(b"device", kind=b"?")], [b"x"]),
        ([entry(b"away", kind=b"l", link=b"/etc/passwd")], []),
        ([entry(b"away", kind=b"l", link=b"a/../../x")], []),
        ([entry(b"a"), entry(b"b")], [b"one only"]),
        ([entry(b"a")], [b"one", b"too many"]),
        ([entry(b"a")], [b"more than was promised" * 100]),
        ([entry(b"a"), entry(b"a")], [b"x"]),
        ([b"rubbish"], [b"x"]),
    ],
)
def test_invalid_listing_is_refused(
    listing: list[bytes], contents: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transfer, "BYTES_MAX", 1000)
    (tmp_path / "in").mkdir()
    answers: Answers = {
        wire.LIST_KIND: _listing(*listing),
        wire.READ_FILES_KIND: lambda _: wire.pack(*contents),
    }
    with pytest.raises(SandboxError):
        _download(answers, tmp_path / "in" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["in"]
    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")} <= {"in", "in/out"}


def test_unreadable_contents_are_refused(tmp_path: Path) -> None:
    answers: Answers = {
        wire.LIST_KIND: _listing(entry(b"a")),
        wire.READ_FILES_KIND: lambda _: b"\xff\xff\xff\xffx",
    }
    with pytest.raises(SandboxError):
        _download(answers, tmp_path / "out")


def test_endless_tree_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "ENTRIES_MAX", 20)
    answers: Answers = {wire.LIST_KIND: lambda _: TOP + entry(b"deeper", kind=b"d")}
    with pytest.raises(SandboxError, match="more than 20 files"):
        _download(answers, tmp_path / "out")
