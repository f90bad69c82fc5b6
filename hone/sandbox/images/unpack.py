"""Unpack an untrusted layer into a directory. Runs as a separate program.

    python -I -S unpack.py DIRECTORY DIFF_ID MAX_BYTES MAX_ENTRIES [PYARROW] < BLOB

`hone.sandbox.images.layers` starts it where only DIRECTORY is writable. It still follows no link of the
archive out of DIRECTORY: it resolves every path component by component, as if DIRECTORY were `/`. No other
process writes there meanwhile. The result has the form of an overlayfs layer (mount option `userxattr`): a
deleted file is a character device 0/0, a replaced directory carries `user.overlay.opaque`.

Everything belongs to the user who unpacks; setuid and setgid bits, devices, pipes, sockets and extended
attributes of the archive are dropped. The last line of stdout is `{"ok": true}` or `{"error": KIND,
"detail": ...}` with KIND one of damaged, disk_full, too_large, too_many, unsupported.

Formats: OCI image specification, "Image Layer Filesystem Changeset"; overlayfs.rst of the Linux kernel.
"""

from __future__ import annotations

import errno
import gzip
import hashlib
import json
import os
import resource
import shutil
import stat
import sys
import tarfile
from typing import BinaryIO, Protocol

WHITEOUT = b".wh."
OPAQUE = b".wh..wh..opq"
AUFS_PRIVATE = b".wh..wh."  # metadata of aufs in old layers
OPAQUE_ATTRIBUTE = "user.overlay.opaque"
MAX_LINKS = 40  # on the way to one entry, as in the kernel
MAX_PATH_BYTES = 3000  # the kernel's limit is 4096, including the path of the store
MAX_DEPTH = 400  # of directories; Python's tree functions recurse
MAX_MEMORY_BYTES = 2 << 30  # address space: an archive's headers are read into memory
PIECE_BYTES = 1 << 20
BUFFER_BYTES = 1 << 16  # tarfile copies the rest of its buffer at every read
ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
GZIP_MAGIC = b"\x1f\x8b"
_NEW_FILE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
_UNREADABLE = (tarfile.InvalidHeaderError, tarfile.TruncatedHeaderError)  # pyright: ignore


class Refused(Exception):
    """The layer cannot be unpacked; `kind` is the reason, as in the reply."""

    def __init__(self, kind: str, detail: str = "") -> None:
        super().__init__(detail)
        self.kind = kind


class Readable(Protocol):
    def read(self, size: int = -1, /) -> bytes: ...


class Member(tarfile.TarInfo):
    """An unreadable header is an error everywhere; tarfile takes later ones for the end of the archive."""

    @classmethod
    def fromtarfile(cls, tarfile: tarfile.TarFile) -> Member:
        try:
            return super().fromtarfile(tarfile)  # pyright: ignore[reportReturnType]
        except _UNREADABLE as error:
            raise Refused("damaged", f"unreadable header: {error}") from error


class HashingReader:
    """Hashes and counts the bytes that are read."""

    def __init__(self, source: Readable, max_bytes: int) -> None:
        self._source, self._left = source, max_bytes
        self._sha256 = hashlib.sha256()

    def read(self, size: int = -1, /) -> bytes:
        content = self._source.read(size)
        self._left -= len(content)
        if self._left < 0:
            raise Refused("too_large")
        self._sha256.update(content)
        return content

    def finish(self) -> str:
        """Read the rest; return the digest of everything."""
        while self.read(PIECE_BYTES):
            pass
        return f"sha256:{self._sha256.hexdigest()}"


def decompress(blob: BinaryIO) -> Readable:
    """Return the content of a gzip, zstd or plain blob, recognised by its first bytes."""
    magic = blob.peek(4)[:4]  # pyright: ignore[reportAttributeAccessIssue]
    if magic.startswith(GZIP_MAGIC):
        return gzip.GzipFile(fileobj=blob, mode="rb")
    if magic == ZSTD_MAGIC:
        import pyarrow

        return pyarrow.CompressedInputStream(pyarrow.PythonFile(blob, mode="r"), "zstd")
    return blob


class Extraction:
    """Writes the members of one archive below the directory `root`, whose path has no links."""

    def __init__(self, root: bytes, max_bytes: int, max_entries: int) -> None:
        self._root, self._bytes_left, self._entries_left = root, max_bytes, max_entries
        self._times: dict[bytes, int] = {}  # of directories; set last, because new entries change them

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        name = clean(member.name)
        if any(part.startswith(AUFS_PRIVATE) and part != OPAQUE for part in name.split(b"/")):
            return
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return  # devices and pipes
        self._count_entry()
        if not name:
            os.chmod(self._root, _directory_mode(member.mode))
            return
        above, _, last = name.rpartition(b"/")
        parent = self._resolve(above)
        path = os.path.join(parent, last)
        if last == OPAQUE:
            os.setxattr(parent, OPAQUE_ATTRIBUTE, b"y")
        elif last.startswith(WHITEOUT):
            _white_out(parent, last[len(WHITEOUT) :])
        elif member.isdir():
            self._add_directory(path, member)
        else:
            remove(path)
            self._add_file(archive, path, member)

    def finish(self) -> None:
        for path, time_ns in self._times.items():
            if os.path.realpath(path) == path and _kind(path) == stat.S_IFDIR:  # not replaced later
                os.utime(path, ns=(time_ns, time_ns))

    def _count_entry(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise Refused("too_many")

    def _resolve(self, name: bytes) -> bytes:
        """Return the path of a directory of the layer, made if missing. Raises Refused."""
        path, links = self._root, 0
        todo = name.split(b"/")[::-1]
        while todo:
            part = todo.pop()
            if part == b"..":
                path = path if path == self._root else os.path.dirname(path)
            if part in (b"", b".", b".."):
                continue
            below = os.path.join(path, part)
            kind = _kind(below)
            if kind == stat.S_IFLNK:
                target = os.readlink(below)
                links += 1
                if links > MAX_LINKS or len(target) > MAX_PATH_BYTES:
                    raise Refused("damaged", "a name leads through too many links")
                path = self._root if target.startswith(b"/") else path
                todo += target.split(b"/")[::-1]
                continue
            if kind != stat.S_IFDIR:
                self._make_directory(below, kind)
            path = below
        return path

    def _make_directory(self, path: bytes, kind: int) -> None:
        """Make a directory where `kind` is; it hides the one of lower layers if the archive deleted that."""
        if kind not in (0, stat.S_IFCHR):
            raise Refused("damaged", "a name leads through a file")
        inside = path[len(self._root) + 1 :]
        if inside.count(b"/") >= MAX_DEPTH or len(inside) > MAX_PATH_BYTES:
            raise Refused("damaged", "a name that is too long")
        self._count_entry()
        remove(path)
        os.mkdir(path, 0o755)
        if kind == stat.S_IFCHR:
            os.setxattr(path, OPAQUE_ATTRIBUTE, b"y")

    def _add_directory(self, path: bytes, member: tarfile.TarInfo) -> None:
        kind = _kind(path)
        if kind in (stat.S_IFREG, stat.S_IFLNK):
            kind = 0  # replaced
        if kind != stat.S_IFDIR:
            self._make_directory(path, kind)
        os.chmod(path, _directory_mode(member.mode))
        self._times[path] = _nanoseconds(member.mtime)

    def _add_file(self, archive: tarfile.TarFile, path: bytes, member: tarfile.TarInfo) -> None:
        time_ns = _nanoseconds(member.mtime)
        if member.issym():
            os.symlink(encode(member.linkname), path)
            os.utime(path, ns=(time_ns, time_ns), follow_symlinks=False)
        elif member.islnk():
            above, _, last = clean(member.linkname).rpartition(b"/")
            source = os.path.join(self._resolve(above), last)
            if _kind(source) not in (stat.S_IFREG, stat.S_IFLNK):
                raise Refused("damaged", "a hard link leads to no file of its layer")
            os.link(source, path, follow_symlinks=False)
        else:
            self._bytes_left -= member.size
            if self._bytes_left < 0:
                raise Refused("too_large")
            content = archive.extractfile(member)
            with os.fdopen(os.open(path, _NEW_FILE, 0o600), "wb", buffering=0) as file:
                if content is not None and member.size:
                    shutil.copyfileobj(content, file, PIECE_BYTES)
                os.fchmod(file.fileno(), (member.mode & 0o777) | 0o400)
                os.utime(file.fileno(), ns=(time_ns, time_ns))


def clean(name: str) -> bytes:
    """Return the path of a member below the root of the layer: `b` for `/a/../../b/`."""
    path = os.path.normpath(b"/" + encode(name).lstrip(b"/"))[1:]
    if len(path) > MAX_PATH_BYTES or b"\0" in path:
        raise Refused("damaged", "a name that no file can have")
    return path


def encode(name: str) -> bytes:
    """Return the bytes of a name in the archive."""
    return name.encode("utf-8", "surrogateescape")


def remove(path: bytes) -> None:
    """Remove a file or tree, if it exists."""
    kind = _kind(path)
    if kind == stat.S_IFDIR:
        shutil.rmtree(path)
    elif kind:
        os.unlink(path)


def _white_out(parent: bytes, name: bytes) -> None:
    """Hide `name` in lower layers; an entry of this layer with that name stays."""
    if name in (b"", b".", b".."):
        raise Refused("damaged", "a deletion of no file")
    path = os.path.join(parent, name)
    kind = _kind(path)
    if kind == stat.S_IFDIR:
        os.setxattr(path, OPAQUE_ATTRIBUTE, b"y")
    elif not kind:
        os.mknod(path, stat.S_IFCHR, os.makedev(0, 0))


def _kind(path: bytes) -> int:
    """Return the file type bits of st_mode; 0 when there is no such file."""
    try:
        return stat.S_IFMT(os.lstat(path).st_mode)
    except FileNotFoundError:
        return 0


def _directory_mode(mode: int) -> int:
    return (mode & 0o1777) | 0o700


def _nanoseconds(seconds: float) -> int:
    return int(min(max(seconds, 0), 1 << 33)) * 1_000_000_000


def unpack(blob: BinaryIO, directory: str, diff_id: str, max_bytes: int, max_entries: int) -> None:
    """Unpack a blob into an empty directory.

    Raises Refused, OSError, and the errors of tarfile and zlib.
    """
    content = HashingReader(decompress(blob), max_bytes)
    extraction = Extraction(os.path.realpath(os.fsencode(directory)), max_bytes, max_entries)
    archive = tarfile.open(  # noqa: SIM115  # pyright: ignore[reportCallIssue]
        fileobj=content,  # pyright: ignore[reportArgumentType]
        mode="r|",
        tarinfo=Member,
        bufsize=BUFFER_BYTES,
        encoding="utf-8",
        errors="surrogateescape",
    )
    while (member := archive.next()) is not None:
        extraction.add(archive, member)
        archive.members.clear()  # pyright: ignore[reportAttributeAccessIssue]
    found = content.finish()
    if found != diff_id:
        raise Refused("damaged", f"its content has the digest {found}")
    extraction.finish()


def describe(error: Exception) -> dict[str, str]:
    """Return the message to the parent. Errors of no other kind mean that the archive is damaged."""
    if isinstance(error, Refused):
        kind = error.kind
    elif isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        kind = "disk_full"
    elif isinstance(error, OSError) and error.errno in (errno.EOPNOTSUPP, errno.EPERM, errno.EROFS):
        kind = "unsupported"
    else:
        kind = "damaged"
    return {"error": kind, "detail": f"{error or type(error).__name__}"[:200]}


def main() -> None:
    directory, diff_id, max_bytes, max_entries, *paths = sys.argv[1:]
    sys.path += paths
    os.umask(0)
    resource.setrlimit(resource.RLIMIT_AS, (MAX_MEMORY_BYTES, MAX_MEMORY_BYTES))
    try:
        unpack(sys.stdin.buffer, directory, diff_id, int(max_bytes), int(max_entries))
    except Exception as error:
        print(json.dumps(describe(error)))
    else:
        print(json.dumps({"ok": True}))


if __name__ == "__main__":
    main()
