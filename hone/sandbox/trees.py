"""File trees that cross a trust border: out of a sandbox, or between machines as tar streams.

`TreeWriter` makes a tree from entries that an attacker may have chosen. `pack` and `unpack` turn a file or
tree into a tar stream and back. The stream has one top member, `content`, and the entries of a tree below it:
regular files, directories, and links that stay within the tree, in GNU format, sorted, without owners and
times, so that equal trees have equal bytes. Everything else is refused: absolute names, "..", links that lead
out, hard links, devices, sparse files, extended headers, setuid and its like, a name twice, too many entries
or bytes.
"""

from __future__ import annotations

import hashlib
import os
import posixpath
import shutil
import stat
import tarfile
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import IO, BinaryIO, Protocol, cast

from hone.sandbox.contract import SandboxError, TooLarge

TOP = "content"
BYTES_MAX = 1 << 30  # of all files of a tree
ENTRIES_MAX = 200_000
DEPTH_MAX = 256  # of directories; code that removes trees is often recursive
_NAME_MAX = 64 << 10  # bytes of a name that does not fit into a header block
_CHUNK = 1 << 18
_LONG_NAMES = (tarfile.GNUTYPE_LONGNAME, tarfile.GNUTYPE_LONGLINK)
_ALLOWED = (tarfile.REGTYPE, tarfile.AREGTYPE, tarfile.DIRTYPE, tarfile.SYMTYPE, *_LONG_NAMES)


class Sink(Protocol):
    def write(self, data: bytes, /) -> object: ...


def max_wire_bytes(limit: int = BYTES_MAX) -> int:
    """Return the most bytes that the tar stream of a tree with `limit` bytes can take."""
    return limit + (64 << 20) + limit // 8


# --- reading and writing trees


def walk(source: Path) -> Iterator[tuple[str, Path]]:
    """Yield (path relative to `source`, path) of every entry, parents first; "" is `source` itself.

    Not recursive: a hostile tree may be deep. Raises OSError, TooLarge for more than DEPTH_MAX directories.
    """
    waiting = [("", source)]
    while waiting:
        name, path = waiting.pop()
        if name and name.count("/") >= DEPTH_MAX:
            raise TooLarge(f"{source} is deeper than {DEPTH_MAX} directories")
        yield name, path
        if path.is_dir() and not path.is_symlink():
            children = sorted(path.iterdir(), key=os.fsencode, reverse=True)
            waiting.extend((posixpath.join(name, child.name), child) for child in children)


def remove(tree: Path) -> None:
    """Remove a tree however deep, with directories that are closed to their owner; follow no link."""
    directories = [tree]
    for directory in directories:  # grows meanwhile
        directory.chmod(0o700)
        for path in directory.iterdir():
            if path.is_dir() and not path.is_symlink():
                directories.append(path)
            else:
                path.unlink()
    for directory in reversed(directories):
        directory.rmdir()


def is_unsafe_symlink(folder: str, link: str) -> bool:
    """Return whether a symbolic link in `folder`, relative to the top of its tree, may lead out of the tree.

    A `..` after a name may: the name may be another link, so its parent is unknown. Safe links stay in
    the tree together, too.
    """
    parts = link.split("/")
    leading = 0
    while leading < len(parts) and parts[leading] in ("..", "."):
        leading += 1
    depth = len([part for part in folder.split("/") if part not in ("", ".")])
    above = parts[:leading].count("..")
    return not link or "\0" in link or link.startswith("/") or ".." in parts[leading:] or above > depth


def create_file(path: Path, mode: int) -> BinaryIO:
    """Open a new file for writing, without setuid bits and without write permission for others."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    os.fchmod(fd, mode & 0o755)
    return os.fdopen(fd, "wb")


class TreeWriter:
    """Makes a tree at `top`, which must not exist yet, from entries that are not trusted.

    Paths are relative to `top`; "" is `top` itself. Their parts must be plain names: the caller checks that.
    Invariant: nothing is written through a link, because links are made last, by `finish`.
    """

    def __init__(self, top: Path, *, max_bytes: int = BYTES_MAX) -> None:
        self.bytes_left = max_bytes
        self._top, self._max_bytes = top, max_bytes
        self._entries_left = ENTRIES_MAX
        self._links: dict[str, str] = {}

    def take_bytes(self, count: int) -> None:
        """Count bytes against the limit. Raises TooLarge."""
        self.bytes_left -= count
        if self.bytes_left < 0:
            raise TooLarge(f"the tree holds more than {self._max_bytes} bytes")

    def add_directory(self, path: str, mode: int = 0o755) -> None:
        """Make a directory that its owner can use. Raises FileExistsError, TooLarge."""
        target = self._claim(path)
        target.mkdir(0o700)
        target.chmod(mode & 0o755 | 0o700)

    def add_file(self, path: str, mode: int) -> BinaryIO:
        """Open a new file for writing. The caller counts its bytes. Raises FileExistsError, TooLarge."""
        return create_file(self._claim(path), mode)

    def add_link(self, path: str, link: str) -> None:
        """Note a symbolic link for `finish`. Raises SandboxError if it leads out of the tree."""
        self._claim(path)
        if not path or is_unsafe_symlink(posixpath.dirname(path), link):
            raise SandboxError(f"refused {path[:200]!r}: a link out of the tree, to {link[:200]!r}")
        self._links[path] = link

    def finish(self) -> None:
        """Make the links. Raises FileExistsError when one has the name of another entry."""
        for path, link in self._links.items():
            (self._top / path).symlink_to(link)

    def _claim(self, path: str) -> Path:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise TooLarge(f"the tree holds more than {ENTRIES_MAX} files")
        if path in self._links:
            raise FileExistsError(f"{path!r} comes twice")
        return self._top / path if path else self._top


# --- tar streams


def pack(source: Path, sink: Sink, *, limit: int = BYTES_MAX) -> None:
    """Write the tar stream of a file or tree; links are packed as links.

    Raises OSError, TooLarge, SandboxError for an entry that the stream cannot hold.
    """
    left = limit
    file = cast("IO[bytes]", sink)  # a tar stream is only written to
    with tarfile.open(fileobj=file, mode="w|", format=tarfile.GNU_FORMAT, encoding="utf-8") as tar:
        for number, (name, path) in enumerate(walk(source)):
            member = _describe(name, path)
            left -= member.size
            if left < 0 or number >= ENTRIES_MAX:
                raise TooLarge(f"{source} holds more than {limit} bytes or {ENTRIES_MAX} files")
            if member.isreg():
                with path.open("rb") as content:
                    tar.addfile(member, content)
            else:
                tar.addfile(member)


def digest(source: Path) -> str:
    """Return the SHA-256 of the tar stream of a file or tree, in hexadecimal. Raises as `pack` does."""
    hasher = hashlib.sha256()
    pack(source, cast("Sink", SimpleNamespace(write=hasher.update)))
    return hasher.hexdigest()


def _describe(name: str, path: Path) -> tarfile.TarInfo:
    info = path.lstat()
    member = tarfile.TarInfo(f"{TOP}/{name}" if name else TOP)
    member.mode = stat.S_IMODE(info.st_mode) & 0o777
    if stat.S_ISREG(info.st_mode):
        member.size = info.st_size
    elif stat.S_ISDIR(info.st_mode):
        member.type = tarfile.DIRTYPE
    elif stat.S_ISLNK(info.st_mode):
        member.type, member.linkname = tarfile.SYMTYPE, os.fspath(path.readlink())
        if not name or is_unsafe_symlink(posixpath.dirname(name), member.linkname):
            raise SandboxError(f"{path} is a link out of its tree, to {member.linkname!r}")
    else:
        raise SandboxError(f"{path} is neither a file, a directory nor a link")
    return member


def unpack(file: IO[bytes], directory: Path, *, limit: int = BYTES_MAX) -> Path:
    """Unpack below an empty directory that no other process writes to; return the path of `content` in it.

    Raises SandboxError for a member that is refused, TooLarge, OSError; then part of the tree stays.
    """
    top = directory / TOP
    writer = TreeWriter(top, max_bytes=limit)
    try:
        with tarfile.open(fileobj=file, mode="r|", tarinfo=_Member, encoding="utf-8") as tar:
            for member in tar:
                _unpack_member(tar, member, writer)
        writer.finish()
    except FileExistsError as error:
        raise SandboxError("refused an archive: it holds a name twice") from error
    except (FileNotFoundError, NotADirectoryError) as error:
        raise SandboxError("refused an archive: a member comes before its directory") from error
    except (tarfile.TarError, RecursionError, EOFError) as error:
        raise SandboxError(f"the archive is damaged: {error}") from error
    if not os.path.lexists(top):
        raise SandboxError(f"refused an archive: it has no member {TOP!r}")
    return top


def _unpack_member(tar: tarfile.TarFile, member: tarfile.TarInfo, writer: TreeWriter) -> None:
    path = _checked_path(member)
    writer.take_bytes(member.size)
    if member.issym():
        writer.add_link(path, member.linkname)
    elif member.isdir():
        writer.add_directory(path, member.mode)
    else:
        content = tar.extractfile(member)
        assert content is not None  # of a regular file
        with writer.add_file(path, member.mode) as file:
            shutil.copyfileobj(content, file, _CHUNK)
            if file.tell() != member.size:
                raise tarfile.ReadError("it ends in the middle of a file")


class _Member(tarfile.TarInfo):
    """Refuses a member by its header block, before tarfile reads the announced bytes into memory."""

    @classmethod
    def frombuf(cls, buf: bytes | bytearray, encoding: str, errors: str) -> _Member:
        member = super().frombuf(buf, encoding, errors)
        if member.type not in _ALLOWED:
            raise _refusal(member, "neither a file, a directory nor a link")
        if member.size < 0 or (member.type in _LONG_NAMES and member.size > _NAME_MAX):
            raise _refusal(member, "a size that makes no sense")
        return member


def _checked_path(member: tarfile.TarInfo) -> str:
    """Return the member's path below `content`. Raises SandboxError."""
    top, *parts = member.name.rstrip("/").split("/")
    if top != TOP or any(part in ("", ".", "..") or "\0" in part for part in parts):
        raise _refusal(member, f"a name outside of {TOP!r}")
    if len(parts) > DEPTH_MAX:
        raise _refusal(member, f"deeper than {DEPTH_MAX} directories")
    if member.mode & ~0o777:
        raise _refusal(member, "a setuid, setgid or sticky bit")
    if not member.isreg() and member.size:
        raise _refusal(member, "content where there is none")
    return "/".join(parts)


def _refusal(member: tarfile.TarInfo, why: str) -> SandboxError:
    return SandboxError(f"refused {member.name[:200]!r} of an archive: {why}")
