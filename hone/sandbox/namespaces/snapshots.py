"""Snapshots: copies of a sandbox's upper layers, which become lower layers of later sandboxes.

An attacker may change the tree during the copy. So it is walked by descriptors, links are copied but never
followed, and size and depth are bounded.
"""

from __future__ import annotations

import json
import os
import socket
import stat
from collections.abc import Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from hone.sandbox.contract import SandboxError
from hone.sandbox.namespaces.plan import Plan

_OPAQUE = "user.overlay.opaque"
_DEPTH_MAX = 200
_CHUNK = 1 << 20
_RECORD = "snapshot.json"


@dataclass(slots=True)
class _Budget:
    left: int  # bytes
    links: dict[int, str] = field(default_factory=dict[int, str])  # inode -> its first copy


def take(upper: socket.socket, target: Path, plan: Plan) -> None:
    """Copy a sandbox's upper layers, of which `upper` has received a descriptor, into an empty directory.

    Keeps whiteouts and opaque directories of overlayfs; omits sockets and pipes. Records the image and the
    snapshots below, latest first.

    Raises:
        SandboxError: more bytes than the disk limit, or more than _DEPTH_MAX levels.
    """
    # peeked, so that the next snapshot receives it, too
    _, fds, _, _ = socket.recv_fds(upper, 1, 1, socket.MSG_PEEK | socket.MSG_CMSG_CLOEXEC)
    try:
        _copy_directory(fds[0], str(target), _Budget(plan.limits.disk_mib << 20), 0)
    except OSError as error:
        raise SandboxError(f"the snapshot failed: {error}") from error
    finally:
        os.close(fds[0])
    below = [str(Path(path).parent) for path in plan.base.overlays[0].snapshots]
    (target / _RECORD).write_text(json.dumps({"image": plan.base.name, "below": below}))


def _copy_directory(source: int, target: str, budget: _Budget, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise OSError(f"directories are nested deeper than {_DEPTH_MAX}")
    for name in os.listdir(source):
        info = os.stat(name, dir_fd=source, follow_symlinks=False)
        path = f"{target}/{name}"
        if stat.S_ISDIR(info.st_mode):
            with _opened(source, name, os.O_DIRECTORY, info) as inner:
                os.mkdir(path)
                if _OPAQUE in os.listxattr(inner):
                    os.setxattr(path, _OPAQUE, os.getxattr(inner, _OPAQUE))
                _copy_directory(inner, path, budget, depth + 1)
            _finish(path, info)
        elif info.st_nlink > 1 and info.st_ino in budget.links:
            os.link(budget.links[info.st_ino], path, follow_symlinks=False)
        else:
            _copy_other(source, name, path, info, budget)


def _copy_other(source: int, name: str, path: str, info: os.stat_result, budget: _Budget) -> None:
    if stat.S_ISREG(info.st_mode):
        with _opened(source, name, os.O_NONBLOCK, info) as inner:
            _copy_file(inner, path, budget)
        _finish(path, info)
    elif stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), path)
    elif stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:  # a whiteout
        os.mknod(path, stat.S_IFCHR)
    else:
        return
    if info.st_nlink > 1:
        budget.links[info.st_ino] = path


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


def _copy_file(inner: int, path: str, budget: _Budget) -> None:
    outer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while copied := os.sendfile(outer, inner, None, _CHUNK):  # type: ignore[call-overload]
            budget.left -= copied
            if budget.left < 0:
                raise OSError("the files are larger than the disk limit")
    finally:
        os.close(outer)


def _finish(path: str, info: os.stat_result) -> None:
    os.chmod(path, stat.S_IMODE(info.st_mode) & 0o1777)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def chain(directory: Path, image: str) -> list[str]:
    """Return this snapshot and those below it. Raises ValueError if it is of another image or unfinished."""
    try:
        record = json.loads((directory / _RECORD).read_text())
    except FileNotFoundError:
        raise ValueError(f"{directory} is not a finished snapshot") from None
    if record["image"] != image:
        raise ValueError(f"{directory} is a snapshot of {record['image']}, not of {image}")
    return [str(directory.resolve()), *record["below"]]


def directories(below: list[str], overlay: str) -> list[str]:
    """Return the directories of a chain of snapshots for an overlay; some have none for the workdir."""
    return [f"{directory}/{overlay}" for directory in below if Path(directory, overlay).is_dir()]
