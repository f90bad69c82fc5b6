"""Linux system calls that Python lacks, as functions that raise OSError."""

from __future__ import annotations

import ctypes
import fcntl
import os
import socket
import struct

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
MOUNT_ATTR_RDONLY, MOUNT_ATTR_NOSUID, MOUNT_ATTR_NODEV, MOUNT_ATTR_IDMAP = 1, 2, 4, 0x00100000

_AT_FDCWD, _AT_EMPTY_PATH, _AT_RECURSIVE = -100, 0x1000, 0x8000
_OPEN_TREE_CLONE, _MOVE_MOUNT_F_EMPTY_PATH, _MOVE_MOUNT_T_EMPTY_PATH = 1, 4, 0x40
_PR_SET_DUMPABLE, _PR_SET_CHILD_SUBREAPER = 4, 36
_KEYCTL_JOIN_SESSION_KEYRING = 1
# System calls since Linux 5.2 have the same number on every architecture.
_OPEN_TREE, _MOVE_MOUNT, _OPENAT2, _MOUNT_SETATTR = 428, 429, 437, 442
_SIOCSIFFLAGS, _IFF_UP = 0x8914, 1
_RESOLVE_NO_MAGICLINKS, _RESOLVE_IN_ROOT = 0x02, 0x10
_KEYCTL = {"x86_64": 250, "aarch64": 219}

_libc = ctypes.CDLL(None, use_errno=True)


class _MountAttr(ctypes.Structure):
    _fields_ = (
        ("attr_set", ctypes.c_uint64),
        ("attr_clr", ctypes.c_uint64),
        ("propagation", ctypes.c_uint64),
        ("userns_fd", ctypes.c_uint64),
    )


class _OpenHow(ctypes.Structure):
    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


def _check(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def write_file(path: str, text: str) -> None:
    """Write to a file of /proc or a cgroup, in one call."""
    with open(path, "w") as file:
        file.write(text)


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _check(_libc.unshare(flags), "unshare")


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """mount(2)."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _check(_libc.mount(*arguments), f"mount {kind or 'flags'} on {target}")


def clone_tree(path: str, *, userns_fd: int | None = None, device: bool = False) -> int:
    """Return a descriptor of a detached read-only copy of the mount at `path`, for `attach`.

    Args:
        userns_fd: translate file owners by this user namespace's map (an id-mapped mount); file systems that
            cannot do this raise OSError(EINVAL).
        device: a device node, which can be opened and written to.
    """
    recursive = _AT_RECURSIVE if userns_fd is None else 0
    flags = _OPEN_TREE_CLONE | os.O_CLOEXEC | recursive
    fd = _check(
        _libc.syscall(_OPEN_TREE, _AT_FDCWD, os.fsencode(path), ctypes.c_uint(flags)), f"open_tree {path}"
    )
    strict = MOUNT_ATTR_RDONLY | MOUNT_ATTR_NODEV
    attributes = _MountAttr(attr_set=MOUNT_ATTR_NOSUID | (0 if device else strict))
    if userns_fd is not None:
        attributes.attr_set |= MOUNT_ATTR_IDMAP
        attributes.userns_fd = userns_fd
    try:
        _check(
            _libc.syscall(
                _MOUNT_SETATTR,
                fd,
                b"",
                ctypes.c_uint(_AT_EMPTY_PATH | recursive),
                ctypes.byref(attributes),
                ctypes.c_size_t(ctypes.sizeof(attributes)),
            ),
            f"mount_setattr {path}",
        )
    except OSError:
        os.close(fd)
        raise
    return fd


def attach(fd: int, target: str | int) -> None:
    """Mount a tree from `clone_tree` at `target`, a path or a descriptor, and close the tree's descriptor."""
    if isinstance(target, int):
        flags, directory, path = _MOVE_MOUNT_F_EMPTY_PATH | _MOVE_MOUNT_T_EMPTY_PATH, target, b""
    else:
        flags, directory, path = _MOVE_MOUNT_F_EMPTY_PATH, _AT_FDCWD, os.fsencode(target)
    _check(_libc.syscall(_MOVE_MOUNT, fd, b"", directory, path, ctypes.c_uint(flags)), f"move_mount {target}")
    os.close(fd)


def open_in_root(root_fd: int, path: str, flags: int) -> int:
    """Open a path with `root_fd` as the root directory (openat2(2)): neither links nor `..` escape it."""
    how = _OpenHow(flags=flags | os.O_CLOEXEC, resolve=_RESOLVE_IN_ROOT | _RESOLVE_NO_MAGICLINKS)
    size = ctypes.c_size_t(ctypes.sizeof(how))
    result = _libc.syscall(_OPENAT2, root_fd, os.fsencode(path), ctypes.byref(how), size)
    return _check(result, f"open {path}")


def set_dumpable() -> None:
    """Allow this process to write its uid_map again after a change of user."""
    _check(_libc.prctl(_PR_SET_DUMPABLE, 1, 0, 0, 0), "prctl")


def become_subreaper() -> None:
    """Make orphaned descendants children of this process."""
    _check(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")


def start_loopback() -> None:
    """Bring up the loopback interface of this process's network namespace."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, struct.pack("16sH22x", b"lo", _IFF_UP))


def leave_session_keyring() -> None:
    """Start with an empty kernel keyring instead of the owner's, if the kernel has keyrings."""
    number = _KEYCTL.get(os.uname().machine)
    if number is not None:
        _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None)
