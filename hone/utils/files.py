"""Files and directories that a reader sees complete or not at all, whatever kills the writer."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def default_cache_dir() -> Path:
    """Return $XDG_CACHE_HOME/hone, else ~/.cache/hone."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "hone"


def nearest_existing(path: Path) -> Path:
    """Return the path, or the nearest directory above it that exists, as an absolute path."""
    absolute = path.absolute()
    return next(each for each in (absolute, *absolute.parents) if each.exists())


def check_writable(directory: Path) -> None:
    """Raise the OSError that writing below `directory` would raise; nothing is made."""
    there = nearest_existing(directory)
    problem = 0 if os.access(there, os.W_OK | os.X_OK) else errno.EACCES
    problem = problem if there.is_dir() else errno.ENOTDIR
    if problem:
        raise OSError(problem, os.strerror(problem), str(directory))


@contextmanager
def replace_file(path: Path, *, durable: bool = False) -> Iterator[Path]:
    """Yield a path to write to; rename it to `path` when the block succeeds, remove it when it raises.

    Invariant: `path` holds its old content or the whole new content, never part of either.

    Args:
        durable: also survive a power cut: fsync the file and its directory before returning.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}-{threading.get_ident()}.partial")
    try:
        yield partial
        if durable:
            sync_file(partial)
        partial.replace(path)
        if durable:
            sync_directory(path.parent)
    finally:
        partial.unlink(missing_ok=True)


def write_file(path: Path, data: bytes | str, *, mode: int | None = None, durable: bool = False) -> None:
    """Write `data` to `path` atomically. See `replace_file`.

    Args:
        mode: permission bits, set before the file appears; None leaves them to the umask.
    """
    with replace_file(path, durable=durable) as partial:
        if mode is None:
            partial.write_bytes(data.encode() if isinstance(data, str) else data)
        else:
            descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, mode)
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(descriptor, mode)  # whatever the umask is
                file.write(data.encode() if isinstance(data, str) else data)


def build_directory(target: Path, build: Callable[[Path, int], None]) -> Path:
    """Return `target`, built on first use; concurrent callers in any thread or process share one build.

    Invariant: `target` is complete or absent. An exclusive lock beside it, which the kernel releases when its
    holder dies, serialises builds, so whatever an earlier builder left half done is removed first.

    Args:
        build: fills the new, empty directory that it is given. The second argument is the lock's file
            descriptor; a child process that inherits it keeps the lock until it ends.
    Raises:
        OSError: the directory cannot be made; and whatever `build` raises.
    """
    if target.is_dir():
        return target
    target.parent.mkdir(parents=True, exist_ok=True)
    with (target.parent / f".{target.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not target.is_dir():
            partial = target.parent / f".{target.name}.partial"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir()
            try:
                build(partial, lock.fileno())
                partial.rename(target)
            finally:
                shutil.rmtree(partial, ignore_errors=True)
    return target


def make_readable(tree: Path) -> None:
    """Make a tree readable by every user and writable by its owner only; keep which files are executable."""
    for path in [tree, *tree.rglob("*")]:
        if not path.is_symlink():
            path.chmod(0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644)


def remove_directory(path: Path) -> None:
    """Remove a directory; a kill in the middle leaves no part of it under its own name."""
    doomed = path.with_name(f".{path.name}.deleting")
    shutil.rmtree(doomed, ignore_errors=True)
    with suppress(FileNotFoundError):
        path.rename(doomed)
        shutil.rmtree(doomed)


def sync_file(path: Path) -> None:
    """Flush a file's content to the disk."""
    with path.open("rb") as file:
        os.fsync(file.fileno())


def sync_directory(path: Path) -> None:
    """Flush a directory's entries to the disk: renames and new files in it survive a power cut."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
