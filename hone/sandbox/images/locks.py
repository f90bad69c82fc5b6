"""Locks between processes: `flock` on a file or directory, which the kernel releases with its last holder.

A lock counts only while its path still names the locked file, so the exclusive holder may remove a lock file.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
from pathlib import Path
from types import TracebackType

POLL_S = 0.05  # between two attempts at a lock that is taken


class Lock:
    """A held lock. Processes that inherit `fd` hold it too."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    def release(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


class LockFile(Lock):
    """A lock on a file that exists for the lock only; its release removes the file."""

    def release(self) -> None:
        self.path.unlink()
        super().release()


def lock(path: Path, *, shared: bool = False, wait: bool = False) -> Lock | None:
    """Lock an existing path. Return None when there is none, or when it is taken and `wait` is false.

    Waiting blocks the thread: use it for locks that are held for moments only.
    """
    while True:
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            return None
        if not _flock(fd, shared=shared, wait=wait):
            return None
        if _still_names(path, fd):
            return Lock(path, fd)
        os.close(fd)


def lock_file(path: Path) -> Lock | None:
    """Create and lock a file, which is removed on release. Return None when it is taken."""
    while True:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        if not _flock(fd, shared=False, wait=False):
            return None
        if _still_names(path, fd):
            return LockFile(path, fd)
        os.close(fd)


async def wait_for_one(paths: list[Path]) -> Lock:
    """Wait for one of several lock files, the first that is free, and return it."""
    while True:
        for path in paths:
            held = lock_file(path)
            if held is not None:
                return held
        await asyncio.sleep(POLL_S)


def _flock(fd: int, *, shared: bool, wait: bool) -> bool:
    """Lock the descriptor, or close it and return False."""
    operation = fcntl.LOCK_SH if shared else fcntl.LOCK_EX
    try:
        fcntl.flock(fd, operation if wait else operation | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return False
    return True


def _still_names(path: Path, fd: int) -> bool:
    try:
        return os.path.samestat(path.stat(), os.fstat(fd))
    except FileNotFoundError:
        return False
