"""File requests, in chunks, with the permissions and the view of a command."""

import _stat as stat
import errno
import posix as os

from . import wire


def read_chunk(body: bytes) -> bytes:
    """Return the reply to a READ request."""
    offset, size = wire.READ.unpack_from(body)
    fd = os.open(body[wire.READ.size :], os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        info = os.fstat(fd)
        if stat.S_ISDIR(info.st_mode):
            raise OSError(errno.EISDIR, "is a directory")
        if not stat.S_ISREG(info.st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        data = os.pread(fd, min(size, wire.CHUNK), offset)
    finally:
        os.close(fd)
    return wire.DATA.pack(info.st_size) + data


def read_files(body: bytes) -> bytes:
    """Return the reply to a READ_FILES request."""
    fields = wire.unpack(body)
    contents: list[bytes] = []
    for limit, path in zip(fields[::2], fields[1::2], strict=True):
        (size,) = wire.LENGTH.unpack(limit)
        contents.append(read_chunk(wire.READ.pack(0, size) + path)[wire.DATA.size :])
    return wire.pack(*contents)


def change_all(body: bytes) -> bytes:
    """Handle a CHANGES request."""
    for change in wire.unpack(body):
        HANDLERS[change[0]](change[1:])
    return b""


def make_link(body: bytes) -> bytes:
    """Handle a LINK request."""
    target, path = wire.unpack(body)
    os.symlink(target, path)
    return b""


def write_chunk(body: bytes) -> bytes:
    """Handle a WRITE request; the first chunk truncates the file, or makes it and its parents."""
    offset, mode = wire.WRITE.unpack_from(body)
    path, data = wire.unpack(body, wire.WRITE.size)
    if offset == 0:
        make_directories(path.rpartition(b"/")[0] or b"/")
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK, mode)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(errno.EINVAL, "not a regular file")
        if offset == 0:
            os.ftruncate(fd, 0)
            os.fchmod(fd, mode)
        while data:
            written = os.pwrite(fd, data, offset)
            data, offset = data[written:], offset + written
    finally:
        os.close(fd)
    return b""


def list_entries(path: bytes) -> bytes:
    """Pack the entry of `path` (named "") and of its children; links inside are not followed."""
    info = os.stat(path)
    packed = [pack_entry(b"", info, b"")]
    if stat.S_ISDIR(info.st_mode):
        with os.scandir(path) as entries:
            for entry in entries:
                link = os.readlink(entry.path) if entry.is_symlink() else b""
                packed.append(pack_entry(entry.name, entry.stat(follow_symlinks=False), link))
    return b"".join(packed)


def pack_entry(name: bytes, info: os.stat_result, link: bytes) -> bytes:
    kinds = {stat.S_IFREG: b"f", stat.S_IFDIR: b"d", stat.S_IFLNK: b"l"}
    kind = kinds.get(stat.S_IFMT(info.st_mode), b"?")
    return wire.pack(wire.ENTRY.pack(kind, stat.S_IMODE(info.st_mode), info.st_size), name, link)


def space(path: bytes) -> bytes:
    """Return the reply to a SPACE request."""
    info = os.statvfs(path)
    return wire.SPACE.pack(info.f_bfree * info.f_frsize, info.f_ffree)


def make_directories(path: bytes) -> bytes:
    """Handle a MKDIR request: make a directory and its parents where they are missing."""
    missing = [path]
    while missing:
        try:
            os.mkdir(missing[-1], 0o755)
        except FileExistsError:
            if not stat.S_ISDIR(os.stat(missing[-1]).st_mode):
                raise
        except FileNotFoundError:
            above = missing[-1].rstrip(b"/").rpartition(b"/")[0]
            if not above:
                raise
            missing.append(above)
            continue
        missing.pop()
    return b""


HANDLERS = {
    wire.READ_KIND: read_chunk,
    wire.READ_FILES_KIND: read_files,
    wire.LIST_KIND: list_entries,
    wire.SPACE_KIND: space,
    wire.CHANGES_KIND: change_all,
    wire.WRITE_KIND: write_chunk,
    wire.MKDIR_KIND: make_directories,
    wire.LINK_KIND: make_link,
}  # kind of a request -> function from its body to that of the reply
