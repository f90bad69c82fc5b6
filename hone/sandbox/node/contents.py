"""Uploaded files and trees by digest: the layers and mounts of sandboxes, shared and read-only.

Content that no sandbox uses is deleted, the least recently used first, while the total exceeds `bytes_max`.
"""

from __future__ import annotations

import asyncio
import hashlib
import secrets
import shutil
import tempfile
from collections import Counter, OrderedDict
from collections.abc import AsyncIterator, Iterable
from pathlib import Path

from hone.sandbox import trees
from hone.utils.concurrency import run_in_thread


class Contents:
    def __init__(self, directory: Path, *, bytes_max: int) -> None:
        """`directory` exists, is empty, and belongs to this object alone."""
        self._directory, self._bytes_max = directory, bytes_max
        self._sizes: OrderedDict[str, int] = OrderedDict()  # bytes by digest, least recently used first
        self._users: Counter[str] = Counter()  # number of sandboxes by digest, missing content included

    def missing(self, digests: Iterable[str]) -> list[str]:
        return sorted(digest for digest in digests if digest not in self._sizes)

    def path(self, digest: str) -> Path:
        """Return where content lies. Raises KeyError when it is missing."""
        self._sizes.move_to_end(digest)
        return self._directory / digest / trees.TOP

    def retain(self, digests: Iterable[str]) -> None:
        """Do not delete these before `release`."""
        self._users.update(digests)

    async def release(self, digests: Iterable[str]) -> None:
        self._users.subtract(digests)
        self._users = +self._users
        await self._drop_unused()

    async def put(self, digest: str, chunks: AsyncIterator[bytes]) -> None:
        """Store an archive. Raises what unpacking raises, and ValueError when its digest is not `digest`."""
        new = self._directory / f"new-{secrets.token_hex(8)}"
        try:
            await run_in_thread(new.mkdir, 0o700)
            _, size = await receive_tree(chunks, new, digest=digest)
            if digest not in self._sizes:  # a concurrent upload of the same content may have finished first
                new.rename(self._directory / digest)
                self._sizes[digest] = size
        finally:
            await run_in_thread(shutil.rmtree, new, ignore_errors=True)
        await self._drop_unused()

    async def _drop_unused(self) -> None:
        dropped: list[Path] = []
        for digest in [digest for digest in self._sizes if not self._users[digest]]:
            if sum(self._sizes.values()) <= self._bytes_max:
                break
            del self._sizes[digest]
            dropped.append(self._directory / f"old-{secrets.token_hex(8)}")
            (self._directory / digest).rename(dropped[-1])
        for path in dropped:
            await asyncio.to_thread(shutil.rmtree, path)


async def receive_tree(
    chunks: AsyncIterator[bytes], folder: Path, *, digest: str | None = None
) -> tuple[Path, int]:
    """Unpack an archive as it arrives into an empty directory; return the tree and the archive's bytes.

    Raises what unpacking raises, and ValueError when the archive's SHA-256 is not `digest`.
    """
    hasher = hashlib.sha256()
    with tempfile.TemporaryFile(dir=folder) as file:
        async for chunk in chunks:
            hasher.update(chunk)
            await asyncio.to_thread(file.write, chunk)
        if digest not in (None, hasher.hexdigest()):
            raise ValueError(f"the archive's digest is {hasher.hexdigest()}, not {digest}")
        size = file.tell()
        file.seek(0)
        return await run_in_thread(trees.unpack, file, folder), size
