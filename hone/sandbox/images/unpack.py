"""Unpack an untrusted layer into a directory. Runs as a separate program.

    python -I -S unpack.py DIRECTORY DIFF_ID MAX_BYTES MAX_ENTRIES [PYARROW] < BLOB

`hone.sandbox.images.layers` starts it where only DIRECTORY is writable. It still follows no link of the
archive out of DIRECTORY: it walks every path component by component with O_NOFOLLOW and resolves links on the
way as if DIRECTORY were `/`. The result has the form of an overlayfs layer (mount option `userxattr`): a
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
_DIRECTORY = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
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
    """Writes the members of one archive below the directory `root`."""

    def __init__(self, root: int, max_bytes: int, max_entries: int) -> None:
        self._root, self._bytes_left, self._entries_left = root, max_bytes, max_entries
        self._times: dict[bytes, int] = {}  # of directories; set last, because new entries change them

    def add(self, archive: tarfile.TarFile, member: tarfile.TarInfo) -> None:
        path = clean(member.name)
        if any(part.startswith(AUFS_PRIVATE) and part != OPAQUE for part in path.split(b"/")):
            return
        if not (member.isreg() or member.isdir() or member.issym() or member.islnk()):
            return  # devices and pipes
        self._count_entry()
        if not path:
            os.fchmod(self._root, _directory_mode(member.mode))
            return
        above, _, name = path.rpartition(b"/")
        parent = self._open(above)
        try:
            if name == OPAQUE:
                os.setxattr(parent, OPAQUE_ATTRIBUTE, b"y")
            elif name.startswith(WHITEOUT):
                _white_out(parent, name[len(WHITEOUT) :])
            elif member.isdir():
                self._add_directory(parent, name, member)
                self._times[path] = _nanoseconds(member.mtime)
            else:
                remove(parent, name)
                self._add_file(archive, parent, name, member)
        finally:
            os.close(parent)

    def finish(self) -> None:
        for path, time_ns in self._times.items():
            try:
                directory = self._open(path, make=False)
            except Refused:  # a later member has put something else there
                continue
            os.utime(directory, ns=(time_ns, time_ns))
            os.close(directory)

    def _count_entry(self) -> None:
        self._entries_left -= 1
        if self._entries_left < 0:
            raise Refused("too_many")

    def _open(self, path: bytes, *, make: bool = True) -> int:
        """Return a descriptor of a directory below the root. Raises Refused."""
        here, trail, links = os.dup(self._root), list[bytes](), 0
        todo = path.split(b"/")[::-1]
        try:
            while todo:
                name = todo.pop()
                if name in (b"", b".") or (name == b".." and not trail):
                    continue
                try:
                    below = os.open(name, _DIRECTORY, dir_fd=here)
                except OSError as error:
                    if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                        raise
                    target = _read_link(here, name)
                    if target is None and not make:
                        raise Refused("damaged", "no such directory") from None
                    if target is None:
                        if len(trail) >= MAX_DEPTH or len(b"/".join([*trail, name])) > MAX_PATH_BYTES:
                            raise Refused("damaged", "a name that is too long") from None
                        self._make_directory(here, name)
                        todo.append(name)
                        continue
                    links += 1
                    if links > MAX_LINKS or len(target) > MAX_PATH_BYTES:
                        raise Refused("damaged", "a name leads through too many links") from None
                    if target.startswith(b"/"):
                        here, trail = _replace(here, os.dup(self._root)), []
                    todo += target.split(b"/")[::-1]
                    continue
                here = _replace(here, below)
                trail = trail[:-1] if name == b".." else [*trail, name]
        except BaseException:
            os.close(here)
            raise
        return here

    def _make_directory(self, parent: int, name: bytes) -> None:
        """Make a directory; it hides the one of lower layers if the archive has deleted that."""
        kind = _kind(parent, name)
        if kind == stat.S_IFDIR:
            return
        if kind not in (0, stat.S_IFCHR):
            raise Refused("damaged", "a name leads through a file")
        if kind == stat.S_IFCHR:
            os.unlink(name, dir_fd=parent)
        self._count_entry()
        os.mkdir(name, 0o755, dir_fd=parent)
        if kind == stat.S_IFCHR:
            _make_opaque(parent, name)

    def _add_directory(self, parent: int, name: bytes, member: tarfile.TarInfo) -> None:
        if _kind(parent, name) in (stat.S_IFREG, stat.S_IFLNK):
            os.unlink(name, dir_fd=parent)
        self._make_directory(parent, name)
        os.chmod(name, _directory_mode(member.mode), dir_fd=parent)

    def _add_file(self, archive: tarfile.TarFile, parent: int, name: bytes, member: tarfile.TarInfo) -> None:
        time_ns = _nanoseconds(member.mtime)
        if member.issym():
            os.symlink(encode(member.linkname), name, dir_fd=parent)
            os.utime(name, ns=(time_ns, time_ns), dir_fd=parent, follow_symlinks=False)
        elif member.islnk():
            self._add_link(parent, name, clean(member.linkname))
        else:
            self._bytes_left -= member.size
            if self._bytes_left < 0:
                raise Refused("too_large")
            content = archive.extractfile(member)
            with os.fdopen(os.open(name, _NEW_FILE, 0o600, dir_fd=parent), "wb", buffering=0) as file:
                if content is not None and member.size:
                    shutil.copyfileobj(content, file, PIECE_BYTES)
                os.fchmod(file.fileno(), (member.mode & 0o777) | 0o400)
                os.utime(file.fileno(), ns=(time_ns, time_ns))

    def _add_link(self, parent: int, name: bytes, target: bytes) -> None:
        above, _, target_name = target.rpartition(b"/")
        source = self._open(above)
        try:
            if _kind(source, target_name) not in (stat.S_IFREG, stat.S_IFLNK):
                raise Refused("damaged", "a hard link leads to no file of its layer")
            os.link(target_name, name, src_dir_fd=source, dst_dir_fd=parent, follow_symlinks=False)
        finally:
            os.close(source)


def clean(name: str) -> bytes:
    """Return the path of a member below the root of the layer: `b` for `/a/../../b/`."""
    path = os.path.normpath(b"/" + encode(name).lstrip(b"/"))[1:]
    if len(path) > MAX_PATH_BYTES or b"\0" in path:
        raise Refused("damaged", "a name that no file can have")
    return path


def encode(name: str) -> bytes:
    """Return the bytes of a name in the archive."""
    return name.encode("utf-8", "surrogateescape")


def remove(parent: int, name: bytes) -> None:
    """Remove the file or tree of this name, if any."""
    kind = _kind(parent, name)
    if kind == stat.S_IFDIR:
        shutil.rmtree(name, dir_fd=parent)  # pyright: ignore[reportCallIssue, reportArgumentType]
    elif kind:
        os.unlink(name, dir_fd=parent)


def _white_out(parent: int, name: bytes) -> None:
    """Hide `name` in lower layers; an entry of this layer with that name stays."""
    if name in (b"", b".", b".."):
        raise Refused("damaged", "a deletion of no file")
    kind = _kind(parent, name)
    if kind == stat.S_IFDIR:
        _make_opaque(parent, name)
    elif not kind:
        os.mknod(name, stat.S_IFCHR, os.makedev(0, 0), dir_fd=parent)


def _make_opaque(parent: int, name: bytes) -> None:
    directory = os.open(name, _DIRECTORY, dir_fd=parent)
    os.setxattr(directory, OPAQUE_ATTRIBUTE, b"y")
    os.close(directory)


def _kind(parent: int, name: bytes) -> int:
    """Return the file type bits of st_mode; 0 when there is no such name."""
    try:
        return stat.S_IFMT(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode)
    except FileNotFoundError:
        return 0


def _read_link(parent: int, name: bytes) -> bytes | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except OSError as error:
        if error.errno in (errno.EINVAL, errno.ENOENT):  # no link, or nothing
            return None
        raise


def _replace(before: int, after: int) -> int:
    os.close(before)
    return after


def _directory_mode(mode: int) -> int:
    return (mode & 0o1777) | 0o700


def _nanoseconds(seconds: float) -> int:
    return int(min(max(seconds, 0), 1 << 33)) * 1_000_000_000


def unpack(blob: BinaryIO, directory: str, diff_id: str, max_bytes: int, max_entries: int) -> None:
    """Unpack a blob into an empty directory.

    Raises Refused, OSError, and the errors of tarfile and zlib.
    """
    content = HashingReader(decompress(blob), max_bytes)
    root = os.open(directory, _DIRECTORY)
    extraction = Extraction(root, max_bytes, max_entries)
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
