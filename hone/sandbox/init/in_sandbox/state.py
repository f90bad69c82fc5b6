"""What a sandbox holds besides processes and the files of its overlays, which a snapshot cannot hold."""

import posix as os

_STORES = ((b"/dev/shm", b"a file in /dev/shm"), (b"/dev/mqueue", b"a message queue"))
_STORE_MODE = 0o1777
_SYSTEM_V = (b"shm", b"sem", b"msg")
_ESCAPES = ((b"\\", b"\\134"), (b" ", b"\\040"), (b"\t", b"\\011"), (b"\n", b"\\012"))  # in mountinfo


def find(mounts: "list[bytes]") -> bytes:
    """Return a name of the first state found; b"": there is none. Raises OSError.

    A sandbox in which one of `mounts` is not a mount point any more has moved it, or a directory above it.
    """
    for path, name in _STORES:
        if os.listdir(path) or os.stat(path).st_mode & 0o7777 != _STORE_MODE:
            return name
    for kind in _SYSTEM_V:
        if has_objects(kind):
            return b"a System V object"
    found = mount_points()
    for path in mounts:
        for character, escape in _ESCAPES:
            path = path.replace(character, escape)
        if path not in found:
            return b"a mount that was moved"
    return b""


def has_objects(kind: bytes) -> bool:
    """Return whether there is a System V object of this kind."""
    try:
        with open(b"/proc/sysvipc/" + kind, "rb") as file:
            return len(file.read().splitlines()) > 1  # after the names of the columns
    except FileNotFoundError:  # the kernel has none
        return False


def mount_points() -> "set[bytes]":
    """Return the mount points of this process, escaped as in mountinfo."""
    with open("/proc/self/mountinfo", "rb") as file:
        return {line.split(b" ", 5)[4] for line in file}
