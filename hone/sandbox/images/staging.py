"""Directories for what is being made. One is alive while a process holds its lock, and removed otherwise."""

from __future__ import annotations

import contextlib
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
        """Where the blobs of an image that is being fetched lie, named by their hexadecimal digest."""
        return self.directory / "blobs" / "sha256"

    def new_directory(self, name: str) -> Path:
        path = self.directory / f"{name}-{secrets.token_hex(4)}"
        path.mkdir(mode=0o700)
        return path


@contextlib.asynccontextmanager
async def staging(parent: Path) -> AsyncGenerator[Staging]:
    """A fresh directory below `parent`, removed at the end with all that is still in it."""
    held = None
    while held is None:  # between its making and its locking, somebody may take it for a dead one
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
    """Remove the directories below `parent` that no living process holds."""
    for directory in parent.iterdir():
        dead = lock(directory)
        if dead is not None:
            with dead:
                shutil.rmtree(directory, ignore_errors=True)
