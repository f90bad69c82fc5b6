"""Staging directories. One is in use while a process holds its lock; others are removed."""

from __future__ import annotations

import contextlib
import os
import secrets
import shutil
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.images.locks import Lock, lock
from hone.utils.concurrency import run_in_thread


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
    total, seen = 0, set[tuple[int, int]]()
    waiting = [str(directory)]
    while waiting:
        try:
            with os.scandir(waiting.pop()) as entries:
                for entry in entries:
                    info = entry.stat(follow_symlinks=False)
                    is_directory = entry.is_dir(follow_symlinks=False)
                    if is_directory:
                        waiting.append(entry.path)
                    if is_directory or info.st_nlink == 1 or (info.st_dev, info.st_ino) not in seen:
                        seen.add((info.st_dev, info.st_ino))
                        total += info.st_blocks * 512
        except FileNotFoundError:
            continue
    return total
