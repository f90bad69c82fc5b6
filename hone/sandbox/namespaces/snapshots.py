"""Snapshots: copies of a sandbox's upper layers, with which later sandboxes begin.

A snapshot is a directory of two files: `data`, the contents of all files one after the other, and a JSON
record of the image and the trees. So nothing that a sandbox made is ever a file, a link or a special file of
the host. A sandbox that begins with a snapshot gets the trees in its own upper layers, which count towards
its limits.

An attacker may change the tree during the copy. So it is walked by descriptors, no link is followed, and size
and depth are bounded.
"""

from __future__ import annotations

import errno
import json
import os
import socket
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from hone.sandbox.contract import IncompleteSnapshot, Limits, SandboxError
from hone.sandbox.namespaces.plan import Plan

# An entry of a tree: kind (d: directory, f: file, l: link, w: whiteout), mode, times, and what its kind
# needs. In place of a file with several names there is its number in `linked`.
Entry = dict[str, Any]

_OPAQUE = "user.overlay.opaque"
_OVERLAY, _ESCAPED = "user.overlay.", "user.overlay.overlay."  # attributes of overlayfs; of a user, by it
_DEPTH_MAX = 200
_PAGE = 4096  # bytes; contents are counted by whole pages, as on a tmpfs
_WHOLE_ENTRIES_MAX = 20_000
_CHUNK = 1 << 20
_RECORD, _DATA = "snapshot.json", "data"


class UpperLayers:
    """A sandbox's directory of upper layers, whose descriptor comes through a socket."""

    def __init__(self, source: socket.socket) -> None:
        """`source` has received the descriptor by the time that the sandbox is ready."""
        self._source = source
        self._fd = -1

    def open(self) -> int:
        """Return a new descriptor of the directory, for `take`. Raises SandboxError if none came."""
        if self._fd < 0:  # received once: not every kernel lets it be peeked again
            _, fds, _, _ = socket.recv_fds(self._source, 1, 1, socket.MSG_CMSG_CLOEXEC)
            if not fds:
                raise SandboxError("the sandbox did not send its upper layers")
            self._fd = fds[0]
        return os.open(".", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=self._fd)

    def close(self) -> None:
        self._source.close()
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


# --- taking


def take(upper: int, target: Path, plan: Plan, *, whole: bool) -> None:
    """Copy a sandbox's upper layers into an empty directory; close their descriptor `upper`.

    Keeps whiteouts and opaque directories of overlayfs, hard links, holes, and the order of names. Leaves out
    sockets, pipes, setuid and setgid bits, and extended attributes.

    Args:
        whole: raise IncompleteSnapshot for what would be left out. The limits are then half of the sandbox's,
            so that a new sandbox surely has room for the copy, and _WHOLE_ENTRIES_MAX files.
    Raises:
        SandboxError: more bytes than the limit, or more than _DEPTH_MAX levels.
    """
    try:
        with (target / _DATA).open("xb") as data:
            taking = _Taking(data, *_limits(plan.limits, whole), whole)
            trees = taking.read_directory(upper, 0)
    except OSError as error:
        raise SandboxError(f"the snapshot failed: {error}") from error
    finally:
        os.close(upper)
    record = {"image": plan.base.name, "made_ns": plan.made_ns, "linked": taking.linked, "trees": trees}
    (target / _RECORD).write_text(json.dumps(record))


def _limits(limits: Limits, whole: bool) -> tuple[int, int]:
    """Return the most bytes and the most entries of a snapshot."""
    inodes = limits.disk_mib * 256
    if not whole:
        return limits.disk_mib << 20, inodes
    return min(limits.disk_mib, limits.memory_mib) << 19, min(inodes // 2, _WHOLE_ENTRIES_MAX)


@dataclass(slots=True)
class _Taking:
    data: BinaryIO
    bytes_left: int
    entries_left: int
    whole: bool
    written: int = 0  # bytes of `data`
    linked: list[Entry] = field(default_factory=list[Entry])
    numbers: dict[int, int] = field(default_factory=dict[int, int])  # inode -> its place in `linked`

    def read_directory(self, source: int, depth: int) -> dict[str, Entry | int]:
        """Return the entries of an open directory by name."""
        if depth > _DEPTH_MAX:
            raise OSError(f"directories are nested deeper than {_DEPTH_MAX}")
        entries: dict[str, Entry | int] = {}
        for name in os.listdir(source):
            info = os.stat(name, dir_fd=source, follow_symlinks=False)
            self._count_entry()
            if info.st_ino in self.numbers:
                entries[name] = self.numbers[info.st_ino]
                continue
            entry = self._read(source, name, info, depth)
            if entry is None:
                continue
            if info.st_nlink > 1 and not stat.S_ISDIR(info.st_mode):
                entries[name] = self.numbers[info.st_ino] = len(self.linked)
                self.linked.append(entry)
            else:
                entries[name] = entry
        return entries

    def _read(self, source: int, name: str, info: os.stat_result, depth: int) -> Entry | None:
        """Return the entry of a name; None for a socket or a pipe."""
        entry: Entry = {"mode": info.st_mode & 0o1777, "times": [info.st_atime_ns, info.st_mtime_ns]}
        if stat.S_ISDIR(info.st_mode):
            with _opened(source, name, os.O_DIRECTORY, info) as inner:
                opaque = self._read_attributes(inner, info)
                return {**entry, "kind": "d", "opaque": opaque, "in": self.read_directory(inner, depth + 1)}
        if stat.S_ISREG(info.st_mode):
            with _opened(source, name, os.O_NONBLOCK, info) as inner:
                self._read_attributes(inner, info)
                return {**entry, "kind": "f", **self._read_file(inner)}
        if stat.S_ISLNK(info.st_mode):
            target = os.readlink(name, dir_fd=source)
            self._count_bytes(len(target))
            return {**entry, "kind": "l", "to": target}
        if stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:
            return {**entry, "kind": "w"}
        if self.whole:
            raise IncompleteSnapshot("a socket or a pipe")
        return None

    def _read_attributes(self, inner: int, info: os.stat_result) -> bool:
        """Return whether a directory hides the one below. Raises IncompleteSnapshot for what is left out."""
        names = os.listxattr(inner)
        if self.whole and info.st_mode & (stat.S_ISUID | stat.S_ISGID):
            raise IncompleteSnapshot("a setuid or setgid bit")
        for name in names if self.whole else ():
            own = name.startswith(_OVERLAY) and not name.startswith(_ESCAPED)
            if not own and not name.startswith("security."):  # labels of the host; not the agent's to set
                raise IncompleteSnapshot("an extended attribute of a file")
        return _OPAQUE in names

    def _read_file(self, inner: int) -> Entry:
        """Append the content of a file to `data`; return its size and (offset, length, offset in `data`)s."""
        ranges: list[tuple[int, int, int]] = []
        at = 0
        while (found := _next_data(inner, at)) is not None:
            start, end = found
            at, written = start, self.written
            while at < end and (piece := os.pread(inner, min(_CHUNK, end - at), at)):
                self._count_bytes(len(piece))
                self.written += self.data.write(piece)
                at += len(piece)
            ranges.append((start, at - start, written))
            at = max(at, end)  # of a file that shrinks meanwhile
        return {"size": os.fstat(inner).st_size, "ranges": ranges}

    def _count_bytes(self, count: int) -> None:
        self.bytes_left -= -(-count // _PAGE) * _PAGE
        if self.bytes_left < 0:
            raise OSError("the files are larger than the disk limit")

    def _count_entry(self) -> None:
        self.entries_left -= 1
        if self.entries_left < 0:
            raise OSError("there are too many files")


@contextmanager
def _opened(source: int, name: str, flags: int, info: os.stat_result) -> Generator[int]:
    """Yield a descriptor for reading, also of an entry that its owner may not read, unless root copies."""
    flags |= os.O_RDONLY | os.O_CLOEXEC
    with ExitStack() as stack:
        try:
            inner = os.open(name, flags | os.O_NOFOLLOW, dir_fd=source)
        except PermissionError:
            entry = os.open(name, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=source)
            stack.callback(os.close, entry)
            mode, path = stat.S_IMODE(info.st_mode), f"/proc/self/fd/{entry}"
            os.chmod(path, mode | 0o500)
            stack.callback(os.chmod, path, mode)
            inner = os.open(path, flags)
        stack.callback(os.close, inner)
        yield inner


def _next_data(file: int, at: int) -> tuple[int, int] | None:
    """Return the first range of data in a file from an offset on; None: only a hole follows."""
    try:
        start = os.lseek(file, at, os.SEEK_DATA)
        return start, os.lseek(file, start, os.SEEK_HOLE)
    except OSError as error:
        if error.errno != errno.ENXIO:
            raise
        return None


# --- restoring


def read_made_ns(directory: Path, image: str) -> int:
    """Return `Plan.made_ns` of a snapshot's sandbox.

    Raises ValueError if the snapshot is of another image, or is not finished.
    """
    try:
        record = json.loads((directory / _RECORD).read_bytes())
    except FileNotFoundError:
        raise ValueError(f"{directory} is not a finished snapshot") from None
    if record["image"] != image:
        raise ValueError(f"{directory} is a snapshot of {record['image']}, not of {image}")
    return record["made_ns"]


class Restoring:
    """An open snapshot, whose trees are made in the upper layers of one new sandbox."""

    def __init__(self, directory: str) -> None:
        with open(f"{directory}/{_RECORD}", "rb") as file:
            record = json.load(file)
        self._trees: dict[str, Entry] = record["trees"]
        self._linked: list[Entry] = record["linked"]
        self._made: dict[int, str] = {}  # place in `_linked` -> path of its first name
        self._data = os.open(f"{directory}/{_DATA}", os.O_RDONLY | os.O_CLOEXEC)

    def has(self, layer: str) -> bool:
        return layer in self._trees

    def restore(self, layer: str, upper: str, *, newest_first: bool) -> None:
        """Make a tree in an empty directory. Raises OSError.

        `newest_first`: how the file system of `upper` orders the names of a directory.
        """
        self._fill(upper, self._trees[layer], -1 if newest_first else 1)

    def _fill(self, path: str, directory: Entry, step: int) -> None:
        for name, entry in list(directory["in"].items())[::step]:
            inner = f"{path}/{name}"
            if isinstance(entry, int) and entry in self._made:
                os.link(self._made[entry], inner, follow_symlinks=False)
            elif isinstance(entry, int):
                self._make(inner, self._linked[entry], step)
                self._made[entry] = inner
            else:
                self._make(inner, entry, step)
        if directory["opaque"]:
            os.setxattr(path, _OPAQUE, b"y")
        os.chmod(path, directory["mode"])
        os.utime(path, ns=tuple(directory["times"]))

    def _make(self, path: str, entry: Entry, step: int) -> None:
        kind = entry["kind"]
        if kind == "d":
            os.mkdir(path, 0o700)
            self._fill(path, entry, step)
        elif kind == "w":
            os.mknod(path, stat.S_IFCHR)
        elif kind == "l":
            os.symlink(entry["to"], path)
            os.utime(path, ns=tuple(entry["times"]), follow_symlinks=False)
        else:
            self._make_file(path, entry)

    def _make_file(self, path: str, entry: Entry) -> None:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            for at, length, source in entry["ranges"]:
                os.lseek(file, at, os.SEEK_SET)
                copied = 0
                while copied < length:
                    sent = os.sendfile(file, self._data, source + copied, length - copied)
                    if sent == 0:
                        raise OSError("the snapshot is cut short")
                    copied += sent
            os.ftruncate(file, entry["size"])
            os.fchmod(file, entry["mode"])
            os.utime(file, ns=tuple(entry["times"]))
        finally:
            os.close(file)
