"""Packing of specs for another machine: local directories become digests of their archives."""

from __future__ import annotations

import asyncio
import functools
import hashlib
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
    hasher, newest_ns = hashlib.blake2b(), 0
    for name, path in trees.walk(source):
        info = path.lstat()
        facts = (name, info.st_mode, info.st_size, info.st_ino, info.st_mtime_ns, info.st_ctime_ns)
        hasher.update(repr(facts).encode())
        newest_ns = max(newest_ns, info.st_ctime_ns)
    return hasher.digest(), newest_ns
