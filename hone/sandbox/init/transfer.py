"""Files and trees over a channel, both ways; small files share frames. Nothing that comes out is trusted."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import SandboxError
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire
from hone.sandbox.trees import BYTES_MAX, TreeWriter, create_file, walk

_BATCH_MAX = 1024  # files read with one request


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: bytes  # f, d, l, ?
    mode: int
    size: int
    name: str
    link: str


async def fetch(channel: Channel, path: bytes, sink: Callable[[bytes], object], limit: int) -> int:
    """Pass a file to `sink` chunk by chunk; return its bytes. Raises SandboxError above `limit` bytes."""
    offset = 0
    while True:
        body = await channel.ask(wire.READ_KIND, wire.READ.pack(offset, wire.CHUNK), path)
        chunk = body[wire.DATA.size :]
        offset += len(chunk)
        if offset > limit:
            raise SandboxError(f"{os.fsdecode(path)} holds more than {limit} bytes")
        sink(chunk)
        if len(chunk) < wire.CHUNK:
            return offset


# --- in


async def upload(channel: Channel, source: Path, target: bytes) -> None:
    """Copy a host file or tree; links are copied as links, other kinds of files refused."""
    changes = _changes(source, target)
    while batch := await asyncio.to_thread(_take, changes):
        await channel.ask(wire.CHANGES_KIND, wire.pack(*batch))


def _changes(source: Path, target: bytes) -> Iterator[bytes]:
    """Yield the requests that copy a file or tree, each with its kind as first byte."""
    for name, path in walk(source):
        yield from _changes_of_one(path, posixpath.join(target, os.fsencode(name)) if name else target)


def _changes_of_one(source: Path, target: bytes) -> Iterator[bytes]:
    info = source.lstat()
    if stat.S_ISLNK(info.st_mode):
        yield bytes([wire.LINK_KIND]) + wire.pack(os.fsencode(source.readlink()), target)
    elif stat.S_ISDIR(info.st_mode):
        yield bytes([wire.MKDIR_KIND]) + target
    elif stat.S_ISREG(info.st_mode):
        mode, offset = stat.S_IMODE(info.st_mode), 0
        with source.open("rb") as file:
            while (data := file.read(wire.CHUNK)) or offset == 0:
                yield bytes([wire.WRITE_KIND]) + wire.WRITE.pack(offset, mode) + wire.pack(target, data)
                if len(data) < wire.CHUNK:
                    return
                offset += len(data)
    else:
        raise SandboxError(f"{source} is neither a file, a directory nor a link")


def _take(changes: Iterator[bytes]) -> list[bytes]:
    """Return the next changes, about CHUNK bytes of them for one frame; none at the end."""
    batch: list[bytes] = []
    size = 0
    while size < wire.CHUNK and (change := next(changes, None)) is not None:
        batch.append(change)
        size += len(change)
    return batch


# --- out


async def download(channel: Channel, source: bytes, target: Path) -> None:
    """Copy a file (replacing `target`) or a tree (making `target`) out of the sandbox.

    Raises FileNotFoundError, FileExistsError; SandboxError for a link that leaves the tree, a special
    file, a name that is a path, or more than BYTES_MAX bytes.
    """
    top = (await _list(channel, source))[0]
    if top.kind == b"f":
        target.unlink(missing_ok=True)  # a link there is replaced, not followed
        with create_file(target, top.mode) as file:
            await fetch(channel, source, file.write, BYTES_MAX)
    elif top.kind == b"d":
        await _Download(channel, source, TreeWriter(target, max_bytes=BYTES_MAX)).run()
    else:
        raise SandboxError(f"{os.fsdecode(source)} is neither a file nor a directory")


class _Download:
    """The download of one tree."""

    def __init__(self, channel: Channel, top: bytes, writer: TreeWriter) -> None:
        self._channel, self._top, self._writer = channel, top, writer
        self._small: list[tuple[str, _Entry]] = []  # files that wait to share a frame
        self._small_bytes = 0

    async def run(self) -> None:
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            self._writer.add_directory(folder)
            for entry in (await _list(self._channel, self._inside(folder)))[1:]:
                path = posixpath.join(folder, entry.name)
                if entry.kind == b"d":
                    waiting.append(path)
                elif entry.kind == b"f":
                    await self._copy(path, entry)
                elif entry.kind == b"l":
                    self._writer.add_link(path, entry.link)
                else:
                    raise SandboxError(f"refused to download {path!r}: a special file")
        await self._copy_small()
        self._writer.finish()

    def _inside(self, path: str) -> bytes:
        return posixpath.join(self._top, os.fsencode(path))

    async def _copy(self, path: str, entry: _Entry) -> None:
        if entry.size >= wire.CHUNK:
            with self._writer.add_file(path, entry.mode) as file:
                limit = self._writer.bytes_left
                self._writer.take_bytes(await fetch(self._channel, self._inside(path), file.write, limit))
            return
        self._small.append((path, entry))
        self._small_bytes += entry.size
        if self._small_bytes >= wire.CHUNK or len(self._small) >= _BATCH_MAX:
            await self._copy_small()

    async def _copy_small(self) -> None:
        files, self._small, self._small_bytes = self._small, [], 0
        fields: list[bytes] = []
        for path, entry in files:
            fields += wire.LENGTH.pack(entry.size), self._inside(path)
        body = await self._channel.ask(wire.READ_FILES_KIND, wire.pack(*fields))
        try:
            contents = wire.unpack(body)
        except (ValueError, struct.error) as error:
            raise SandboxError(f"the sandbox sent unreadable files: {error}") from error
        if len(contents) != len(files):
            raise SandboxError(f"the sandbox sent {len(contents)} files instead of {len(files)}")
        self._writer.take_bytes(sum(map(len, contents)))
        await asyncio.to_thread(self._store, files, contents)

    def _store(self, files: list[tuple[str, _Entry]], contents: list[bytes]) -> None:
        for (path, entry), content in zip(files, contents, strict=True):
            with self._writer.add_file(path, entry.mode) as file:
                file.write(content)


async def _list(channel: Channel, path: bytes) -> list[_Entry]:
    """Return the entry of `path` itself, then those of the directory."""
    body = await channel.ask(wire.LIST_KIND, path)
    try:
        fields = wire.unpack(body)
        entries = [
            _Entry(*wire.ENTRY.unpack(head), *map(os.fsdecode, (name, link)))
            for head, name, link in zip(fields[::3], fields[1::3], fields[2::3], strict=True)
        ]
    except (ValueError, struct.error) as error:
        raise SandboxError(f"the sandbox sent an unreadable listing: {error}") from error
    if not entries or any("/" in e.name or e.name in ("", ".", "..") or "\0" in e.name for e in entries[1:]):
        raise SandboxError("the sandbox sent a name that is not a plain file name")
    return entries
