"""A watchdog over disk usage of sandboxes, for engines whose storage has no quotas.

Free space, read inside a sandbox, shows quickly and cheaply that some sandbox writes; the engine then tells
which one. A sandbox above its limit loses its processes, and far above it is ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import stat
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import Limits, SandboxError
from hone.sandbox.docker.configuration import INODES_PER_MIB
from hone.sandbox.docker.engine import Engine
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire

_PERIOD_S = 0.25
_ASK_S = 2.0  # limit for a sandbox to report the free space; a busy one is skipped
_FULL_SCAN_S = 300.0  # at most between two scans of all sandboxes: removals can hide growth
_GROWTH = 0.25  # share of the smallest limit: a loss of free space that triggers a scan
_KILLED_ABOVE = 1.1  # times the limit; one file may be as large as the limit
_LOST_ABOVE = 4.0  # times the limit
_ROOT = b"/"


@dataclass(frozen=True, slots=True)
class Size:
    """Size of a tree, or free space."""

    bytes: int
    files: int


@dataclass(slots=True, kw_only=True)
class Watched:
    """One running sandbox."""

    container: str
    channel: Channel
    limits: Limits
    layer: Size  # its initial content does not count
    killed_at: float = 0.0  # share of its limit at the last kill


class DiskWatch:
    """Run `run` as a task while the provider is open; add and remove sandboxes in `watched`."""

    def __init__(self, engine: Engine) -> None:
        self.watched: dict[str, Watched] = {}  # by sandbox id
        self._engine = engine
        self._turn = 0
        self._before: Size | None = None  # most free space since the last scan

    async def run(self) -> None:
        """Watch until cancelled."""
        loop = asyncio.get_running_loop()
        scanned_at = loop.time()
        while True:
            await asyncio.sleep(_PERIOD_S)
            watched = list(self.watched.values())
            if not watched:
                continue
            bytes_grew, files_grew = self._compare(await self._free(watched), watched)
            due = loop.time() - scanned_at > _FULL_SCAN_S
            if bytes_grew or files_grew or due:
                for one in watched:
                    with contextlib.suppress(SandboxError, OSError):  # closed, or the engine is slow
                        await self._check(one, count_files=files_grew or due)
                scanned_at = loop.time()

    async def _free(self, watched: Sequence[Watched]) -> Size | None:
        """Return the free space of the writable layers, asked of one sandbox after the other."""
        self._turn += 1
        one = watched[self._turn % len(watched)]
        try:
            async with asyncio.timeout(_ASK_S):
                return Size(*wire.SPACE.unpack(await one.channel.ask(wire.SPACE_KIND, _ROOT)))
        except (SandboxError, OSError, struct.error):  # lost, too slow, or an invalid reply
            return None

    def _compare(self, free: Size | None, watched: Sequence[Watched]) -> tuple[bool, bool]:
        """Return whether bytes and files have grown enough since the last scan for another one."""
        if free is None:
            return False, False
        if self._before is None:  # sandboxes may have written before this first look
            self._before = free
            return True, True
        before = self._before
        smallest = min(one.limits.disk_mib for one in watched)
        bytes_grew = before.bytes - free.bytes > _GROWTH * (smallest << 20)
        files_grew = before.files - free.files > _GROWTH * smallest * INODES_PER_MIB
        if bytes_grew or files_grew:
            self._before = free
        else:
            self._before = Size(max(before.bytes, free.bytes), max(before.files, free.files))
        return bytes_grew, files_grew

    async def _check(self, one: Watched, *, count_files: bool) -> None:
        written = await self._engine.written_bytes(one.container) - one.layer.bytes
        share = written / (one.limits.disk_mib << 20)
        if count_files:
            files = await self._engine.written_files(one.container) - one.layer.files
            share = max(share, files / (one.limits.disk_mib * INODES_PER_MIB))
        if share > _LOST_ABOVE:
            one.channel.abandon(f"it wrote more than {_LOST_ABOVE:.0f} times its {one.limits.disk_mib} MiB")
        elif share > max(_KILLED_ABOVE, one.killed_at):
            one.killed_at = share
            await one.channel.ask(wire.KILL_KIND)
        elif share <= 1.0:
            one.killed_at = 0.0


def measure(directory: Path) -> Size:
    """Return the size of a directory of the host."""
    found = [path.lstat() for path in directory.rglob("*")]
    return Size(sum(one.st_size for one in found if not stat.S_ISDIR(one.st_mode)), len(found))
