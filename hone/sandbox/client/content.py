"""What a spec names of this machine, for a machine that has none of it."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import stat
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from hone.sandbox import trees
from hone.sandbox.contract import ProviderUnavailable, SandboxSpec
from hone.sandbox.remote.wire import LimitsBody, MountBody, SpecBody

_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system in use


@dataclass(frozen=True, slots=True, kw_only=True)
class TravellingSpec:
    """A spec as it goes over the wire, and where the contents that it names by digest lie here."""

    body: SpecBody
    contents: Mapping[str, Path]


async def travelling(spec: SandboxSpec) -> TravellingSpec:
    """Pack up a spec.

    Raises FileNotFoundError, NotADirectoryError, SandboxError for contents that cannot be archived;
    ProviderUnavailable for a spec with a snapshot, which is of this machine alone.
    """
    if spec.snapshot:
        raise ProviderUnavailable("a sandbox on another machine starts from no snapshot", retryable=False)
    if spec.layer and not spec.layer.is_dir():
        raise NotADirectoryError(f"{spec.layer} is not a directory")
    sources = [*([spec.layer] if spec.layer else []), *(mount.source for mount in spec.mounts)]
    digests = {source: await asyncio.to_thread(_digest, source.resolve()) for source in sources}
    body = SpecBody(
        image=spec.image,
        workdir=spec.workdir,
        layer=digests[spec.layer] if spec.layer else None,
        env=dict(spec.env),
        mounts=tuple(MountBody(content=digests[mount.source], target=mount.target) for mount in spec.mounts),
        limits=LimitsBody(**asdict(spec.limits)),
        run=spec.run,
        network=spec.network,
        tunnel=spec.tunnel is not None,
    )
    return TravellingSpec(body=body, contents={digest: source for source, digest in digests.items()})


def _digest(source: Path) -> str:
    state, newest_ns = _state(source)
    if time.time_ns() - newest_ns < _SETTLED_NS:  # a change that comes now may leave the same times
        return trees.digest(source)
    return _digest_of(source, state)


@functools.lru_cache(maxsize=10_000)
def _digest_of(source: Path, state: bytes) -> str:
    """Asked for at every start, and read anew only when `state` says that the tree was changed."""
    return trees.digest(source)


def _state(source: Path) -> tuple[bytes, int]:
    """What the file system tells of a tree without reading its files, and when it last changed.

    Any change of the tree changes this, unless it comes within the resolution of the file system's clock.
    """
    top = source.lstat()
    hasher, newest_ns = hashlib.blake2b(_facts(top)), top.st_ctime_ns
    waiting = [os.fspath(source)] if stat.S_ISDIR(top.st_mode) else []
    while waiting:
        with os.scandir(waiting.pop()) as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                info = entry.stat(follow_symlinks=False)
                hasher.update(os.fsencode(entry.path) + _facts(info))
                newest_ns = max(newest_ns, info.st_ctime_ns)
                if stat.S_ISDIR(info.st_mode):
                    waiting.append(entry.path)
    return hasher.digest(), newest_ns


def _facts(info: os.stat_result) -> bytes:
    return repr((info.st_mode, info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)).encode()
