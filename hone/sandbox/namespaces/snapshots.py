"""Snapshots: copies of a sandbox's upper layers, which become lower layers of later sandboxes.

An attacker may change the tree during the copy. So it is walked by descriptors, links are copied but never
followed, and size and depth are bounded.
"""

from __future__ import annotations

import json
import os
import stat
from dataclasses import dataclass, field
from pathlib import Path

from hone.sandbox.namespaces.plan import Base

_OPAQUE = "user.overlay.opaque"
_DEPTH_MAX = 200
_CHUNK = 1 << 20
_RECORD = "snapshot.json"


@dataclass(slots=True)
class _Budget:
    left: int  # bytes
    links: dict[int, str] = field(default_factory=dict[int, str])  # inode -> its first copy


def copy_tree(source: int, target: str, most: int) -> None:
    """Copy the directory behind descriptor `source` into the existing directory `target`.

    Keeps whiteouts and opaque directories of overlayfs; omits sockets and pipes.

    Raises:
        OSError: more than `most` bytes or _DEPTH_MAX levels.
    """
    _copy_directory(source, target, _Budget(most), 0)


def _copy_directory(source: int, target: str, budget: _Budget, depth: int) -> None:
    if depth > _DEPTH_MAX:
        raise OSError(f"directories are nested deeper than {_DEPTH_MAX}")
    for name in os.listdir(source):
        info = os.stat(name, dir_fd=source, follow_symlinks=False)
        path = f"{target}/{name}"
        if stat.S_ISDIR(info.st_mode):
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            inner = os.open(name, flags, dir_fd=source)
            try:
                os.mkdir(path)
                if _OPAQUE in os.listxattr(inner):
                    os.setxattr(path, _OPAQUE, os.getxattr(inner, _OPAQUE))
                _copy_directory(inner, path, budget, depth + 1)
            finally:
                os.close(inner)
            _finish(path, info)
        elif info.st_nlink > 1 and info.st_ino in budget.links:
            os.link(budget.links[info.st_ino], path, follow_symlinks=False)
        else:
            _copy_other(source, name, path, info, budget)


def _copy_other(source: int, name: str, path: str, info: os.stat_result, budget: _Budget) -> None:
    if stat.S_ISREG(info.st_mode):
        _copy_file(source, name, path, budget)
        _finish(path, info)
    elif stat.S_ISLNK(info.st_mode):
        os.symlink(os.readlink(name, dir_fd=source), path)
    elif stat.S_ISCHR(info.st_mode) and info.st_rdev == 0:  # a whiteout
        os.mknod(path, stat.S_IFCHR)
    else:
        return
    if info.st_nlink > 1:
        budget.links[info.st_ino] = path


def _copy_file(source: int, name: str, path: str, budget: _Budget) -> None:
    inner = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=source)
    outer = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        while copied := os.sendfile(outer, inner, None, _CHUNK):  # type: ignore[call-overload]
            budget.left -= copied
            if budget.left < 0:
                raise OSError("the files are larger than the disk limit")
    finally:
        os.close(inner)
        os.close(outer)


def _finish(path: str, info: os.stat_result) -> None:
    os.chmod(path, stat.S_IMODE(info.st_mode) & 0o1777)
    os.utime(path, ns=(info.st_atime_ns, info.st_mtime_ns))


def write_record(target: Path, base: Base) -> None:
    """Mark a snapshot as finished; record its image and the snapshots below it, latest first."""
    below = [str(Path(path).parent) for path in base.overlays[0].snapshots]
    (target / _RECORD).write_text(json.dumps({"image": base.name, "below": below}))


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
