"""Packing of specs for another machine: local directories become digests of their archives."""

from __future__ import annotations

import asyncio
import functools
import hashlib
import os
import stat
import time
from pathlib import Path

from hone.sandbox import trees
from hone.sandbox.contract import ProviderUnavailable, SandboxSpec
from hone.sandbox.remote.wire import MountBody, SpecBody

_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system in use


async def pack_spec(spec: SandboxSpec) -> tuple[SpecBody, dict[str, Path]]:
    """Return the wire form of a spec, and the local path of each content that it names by digest.

    Raises FileNotFoundError, NotADirectoryError, SandboxError for contents that cannot be archived;
    ProviderUnavailable for a spec with a snapshot, which exists on this machine only.
    """
    if spec.snapshot:
        raise ProviderUnavailable("a remote sandbox cannot start from a local snapshot", retryable=False)
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
        limits=spec.limits,
        run=spec.run,
        network=spec.network,
        tunnel=spec.tunnel is not None,
    )
    return body, {digest: source for source, digest in digests.items()}


def _digest(source: Path) -> str:
    state, newest_ns = _state(source)
    if time.time_ns() - newest_ns < _SETTLED_NS:  # a change right now may leave the same times
        return trees.digest(source)
    return _digest_of(source, state)


@functools.lru_cache(maxsize=10_000)
def _digest_of(source: Path, state: bytes) -> str:
    """Return the digest of a tree, cached while `state` stays the same."""
    return trees.digest(source)


def _state(source: Path) -> tuple[bytes, int]:
    """Return a fingerprint of a tree's metadata, and its newest change time in ns.

    Any change of the tree changes it, except within the resolution of the file system's clock.
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
