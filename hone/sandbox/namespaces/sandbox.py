"""A running sandbox of the namespaces provider: the contract, spoken over the channel."""

from __future__ import annotations

import asyncio
import os
import posixpath
import stat
import struct
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import ExecResult, Sandbox, SandboxError, SandboxLost, SandboxSpec
from hone.sandbox.namespaces.channel import Channel
from hone.sandbox.namespaces.inside import wire
from hone.sandbox.namespaces.rootfs import HOME, RUNTIME_TARGET

READ_MAX = 256 << 20  # bytes of one `read`; a sparse file may claim any size
DOWNLOAD_MAX = 1 << 30  # bytes of one `download`
_ANSWER_S = 30.0  # beyond a command's own time, before a silent sandbox is given up
_PATH = f"{RUNTIME_TARGET}/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class _Entry:
    kind: bytes  # f, d, l, ?
    mode: int
    name: str
    link: str


class NamespacesSandbox(Sandbox):
    def __init__(
        self,
        sandbox_id: str,
        spec: SandboxSpec,
        channel: Channel,
        enforced: Mapping[str, str],
        on_close: Callable[[], Awaitable[None]],
    ) -> None:
        self.id = sandbox_id
        self.spec = spec
        self.enforced = enforced
        self._channel = channel
        self._on_close = on_close
        self._env = {"PATH": _PATH, "HOME": HOME, "LANG": "C.UTF-8", **spec.env}

    async def _exec(
        self,
        argv: list[str],
        timeout_s: float,
        cwd: str,
        env: dict[str, str],
        stdin: bytes,
        merge_stderr: bool,
    ) -> ExecResult:
        pairs = [os.fsencode(word) for pair in (self._env | env).items() for word in pair]
        words = [os.fsencode(word) for word in argv]
        fields = wire.pack(self._inside(cwd), str(len(words)).encode(), *words, *pairs)
        keep = self.spec.limits.output_kib << 10
        request = self._channel.open()
        for start in range(0, len(stdin), wire.CHUNK):
            self._channel.send(wire.STDIN_KIND, request, stdin[start : start + wire.CHUNK])
        self._channel.send(wire.EXEC_KIND, request, wire.EXEC.pack(timeout_s, keep, merge_stderr), fields)
        try:
            kind, body = await self._channel.reply(request, timeout_s + _ANSWER_S)
        except asyncio.CancelledError:
            self._channel.send(wire.CANCEL_KIND, request)
            raise
        try:
            return _parse_result(kind, body, keep)
        except (ValueError, struct.error) as error:
            self._channel.abandon("its supervisor broke the protocol")
            raise SandboxLost(f"its supervisor broke the protocol: {error}") from error

    def _inside(self, path: str) -> bytes:
        """Absolute path inside; relative ones start at workdir."""
        return os.fsencode(posixpath.join(self.spec.workdir, path))

    async def read(self, path: str) -> bytes:
        """A file's content. Raises FileNotFoundError, IsADirectoryError, SandboxError above READ_MAX."""
        chunks: list[bytes] = []
        await self._fetch(self._inside(path), chunks.append, READ_MAX)
        return b"".join(chunks)

    async def _fetch(self, path: bytes, sink: Callable[[bytes], object], limit: int) -> int:
        """Hand a file to `sink` chunk by chunk; returns its bytes."""
        offset = 0
        while True:
            body = await self._channel.ask(wire.READ_KIND, wire.READ.pack(offset, wire.CHUNK), path)
            chunk = body[wire.DATA.size :]
            offset += len(chunk)
            if offset > limit:
                raise SandboxError(f"{os.fsdecode(path)} holds more than {limit} bytes")
            sink(chunk)
            if len(chunk) < wire.CHUNK:
                return offset

    async def write(self, path: str, data: bytes, *, mode: int = 0o644) -> None:
        inside = self._inside(path)
        for start in range(0, max(1, len(data)), wire.CHUNK):
            fields = wire.pack(inside, data[start : start + wire.CHUNK])
            await self._channel.ask(wire.WRITE_KIND, wire.WRITE.pack(start, mode), fields)

    async def upload(self, source: Path, target: str) -> None:
        """Copy a host file or tree; links are copied as links, other kinds of files refused."""
        if source.is_symlink() or not source.is_dir():
            await self._upload_one(source, target)
            return
        await self._channel.ask(wire.MKDIR_KIND, self._inside(target))
        for path in await asyncio.to_thread(lambda: sorted(source.rglob("*"))):
            await self._upload_one(path, posixpath.join(target, path.relative_to(source).as_posix()))

    async def _upload_one(self, source: Path, target: str) -> None:
        info = source.lstat()
        if stat.S_ISLNK(info.st_mode):
            link = os.fsencode(source.readlink())
            await self._channel.ask(wire.LINK_KIND, wire.pack(link, self._inside(target)))
        elif stat.S_ISDIR(info.st_mode):
            await self._channel.ask(wire.MKDIR_KIND, self._inside(target))
        elif stat.S_ISREG(info.st_mode):
            data = await asyncio.to_thread(source.read_bytes)
            await self.write(target, data, mode=stat.S_IMODE(info.st_mode))
        else:
            raise SandboxError(f"{source} is neither a file, a directory nor a link")

    async def download(self, source: str, target: Path) -> None:
        """Copy a file (replacing `target`) or a tree (making `target`) out of the sandbox.

        Raises FileNotFoundError, FileExistsError; SandboxError for a link that leaves the tree, a special
        file, a name that is a path, or more than DOWNLOAD_MAX bytes.
        """
        inside = self._inside(source)
        top = (await self._list(inside))[0]
        if top.kind == b"f":
            await self._download_file(inside, target, top.mode, DOWNLOAD_MAX)
        elif top.kind == b"d":
            await self._download_tree(inside, target)
        else:
            raise SandboxError(f"{source} is neither a file nor a directory")

    async def _download_tree(self, top: bytes, target: Path) -> None:
        target.mkdir()
        left = DOWNLOAD_MAX
        links: list[tuple[str, str]] = []  # made last, so that nothing is ever written through one
        waiting = [""]
        while waiting:
            folder = waiting.pop()
            for entry in (await self._list(posixpath.join(top, os.fsencode(folder))))[1:]:
                path = posixpath.join(folder, entry.name)
                if entry.kind == b"d":
                    (target / path).mkdir()
                    waiting.append(path)
                elif entry.kind == b"f":
                    inside = posixpath.join(top, os.fsencode(path))
                    left -= await self._download_file(inside, target / path, entry.mode, left)
                elif entry.kind == b"l" and not _leaves(folder, entry.link):
                    links.append((path, entry.link))
                else:
                    raise SandboxError(
                        f"refused to download {path!r}: a link out of the tree or a special file"
                    )
        for path, link in links:
            (target / path).symlink_to(link)

    async def _download_file(self, inside: bytes, target: Path, mode: int, limit: int) -> int:
        """Copy one file; its bytes. A link at `target` is replaced, not followed."""
        target.unlink(missing_ok=True)
        fd = os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        with os.fdopen(fd, "wb") as file:
            size = await self._fetch(inside, file.write, limit)
            os.fchmod(file.fileno(), mode & 0o755)  # no setuid, nothing others may write
        return size

    async def _list(self, path: bytes) -> list[_Entry]:
        """What `path` is, first; then what the directory holds."""
        body = await self._channel.ask(wire.LIST_KIND, path)
        try:
            fields = wire.unpack(body)
            triples = zip(fields[::3], fields[1::3], fields[2::3], strict=True)
            entries = [
                _Entry(
                    wire.ENTRY.unpack(head)[0], wire.ENTRY.unpack(head)[1], *map(os.fsdecode, (name, link))
                )
                for head, name, link in triples
            ]
        except (ValueError, struct.error) as error:
            raise SandboxError(f"the sandbox sent an unreadable listing: {error}") from error
        if not entries or any(
            "/" in e.name or e.name in ("", ".", "..") or "\0" in e.name for e in entries[1:]
        ):
            raise SandboxError("the sandbox sent a name that is not a plain file name")
        return entries

    async def close(self) -> None:
        self._channel.abandon("it was closed")
        await self._on_close()


def _leaves(folder: str, link: str) -> bool:
    """Whether a link in `folder` (relative to the tree) points out of the tree."""
    resolved = posixpath.normpath(posixpath.join(folder, link))
    return link.startswith("/") or resolved == ".." or resolved.startswith("../")


def _parse_result(kind: int, body: bytes, keep: int) -> ExecResult:
    if kind != wire.RESULT_KIND:
        raise ValueError(f"a command was answered with {kind}")
    code, timed_out, out_total, err_total, seconds, out_size = wire.RESULT.unpack_from(body)
    streams = body[wire.RESULT.size :]
    stdout, stderr = streams[:out_size], streams[out_size:]
    if max(len(stdout), len(stderr)) > keep + 1:
        raise ValueError("more output than the cap")
    return ExecResult(
        exit_code=code,
        stdout=stdout,
        stderr=stderr,
        stdout_bytes=out_total,
        stderr_bytes=err_total,
        timed_out=bool(timed_out),
        seconds=seconds,
    )
