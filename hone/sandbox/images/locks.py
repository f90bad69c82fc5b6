"""Locks between processes, the staging directories that they protect, and the programs that work there.

A lock is a `flock` on a file or directory, which the kernel releases with its last holder. It
counts only while its path still names the locked file, so the exclusive holder may remove a lock file.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import secrets
import shutil
import stat
from collections.abc import AsyncGenerator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.utils.concurrency import run_in_thread

POLL_S = 0.05  # between two attempts at a lock that is taken


class Lock:
    """A held lock. Processes that inherit `fd` hold it too."""

    def __init__(self, path: Path, fd: int) -> None:
        self.path, self.fd = path, fd

    def release(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *error: object) -> None:
        self.release()


class LockFile(Lock):
    """A lock on a file that exists for the lock only; its release removes the file."""

    def release(self) -> None:
        self.path.unlink()
        super().release()


def lock(path: Path, *, shared: bool = False, wait: bool = False, make: bool = False) -> Lock | None:
    """Lock a path. Return None when there is none, or when it is taken and `wait` is false.

    Args:
        wait: block the thread: only for locks that are held for moments.
        make: create the file, which is removed on release.
    """
    flags = os.O_RDWR | os.O_CREAT if make else os.O_RDONLY
    while True:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except FileNotFoundError:
            return None
        if not _flock(fd, shared=shared, wait=wait):
            return None
        if _still_names(path, fd):
            return LockFile(path, fd) if make else Lock(path, fd)
        os.close(fd)


async def wait_for_one(paths: list[Path]) -> Lock:
    """Wait for one of several lock files, the first that is free, and return it."""
    while True:
        for path in paths:
            held = lock(path, make=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    directory: Path
    lock: Lock

    @property
    def blobs(self) -> Path:
        """The directory of the blobs of an image that is being fetched, named by their hexadecimal digest."""
        return self.directory / "blobs" / "sha256"

    def new_directory(self, name: str) -> Path:
        path = self.directory / f"{name}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        return path


@contextlib.asynccontextmanager
async def staging(parent: Path) -> AsyncGenerator[Staging]:
    """Make a fresh directory below `parent`; remove it at the end with everything that is still in it."""
    held = None
    while held is None:  # another process may remove it before it is locked
        directory = parent / secrets.token_hex(8)
        directory.mkdir(mode=0o700)
        held = lock(directory)
    made = Staging(directory=held.path, lock=held)
    made.blobs.mkdir(parents=True)
    try:
        yield made
    finally:
        await run_in_thread(shutil.rmtree, made.directory, ignore_errors=True)
        held.release()


def remove_dead(parent: Path) -> None:
    """Remove the directories below `parent` that no living process has locked."""
    for directory in parent.iterdir():
        dead = lock(directory)
        if dead is not None:
            with dead:
                shutil.rmtree(directory, ignore_errors=True)


def disk_usage(directory: Path) -> int:
    """Return the bytes on disk of a tree that may be changing; a file with several links counts once."""
    total, linked = 0, set[tuple[int, int]]()
    for folder, directories, files in os.walk(directory):
        for name in (*directories, *files):
            try:
                info = os.lstat(f"{folder}/{name}")
            except FileNotFoundError:
                continue
            if stat.S_ISDIR(info.st_mode) or info.st_nlink == 1 or (info.st_dev, info.st_ino) not in linked:
                linked.add((info.st_dev, info.st_ino))
                total += info.st_blocks * 512
    return total


@contextlib.asynccontextmanager
async def child(
    command: Sequence[str], made: Staging, *, stderr: int, env: Mapping[str, str] | None = None
) -> AsyncGenerator[tuple[asyncio.subprocess.Process, asyncio.Task[tuple[bytes, bytes]]]]:
    """Start a program in a staging directory; yield it and the task that collects its output.

    The program holds the lock of the directory until it is dead. When the block ends before the program, the
    program is killed.
    """
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", *command),
        cwd=made.directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=stderr,
        pass_fds=(made.lock.fd,),
        env=env,
    )
    output = asyncio.create_task(process.communicate())
    try:
        yield process, output
    finally:
        await kill(process, output)


async def kill(process: asyncio.subprocess.Process, output: asyncio.Task[object]) -> None:
    """Kill a program unless its output is complete, and wait for its end."""
    if not output.done():
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await asyncio.wait([output])
