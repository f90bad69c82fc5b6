"""The provider `pool`: leased sandboxes on the nodes of a pool server.

The client chooses lease ids, so it can repeat or close a request whose reply was lost. One task renews all
leases; commands go to the nodes directly.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import itertools
import logging
import os
import secrets
import time
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import aiohttp

from hone.sandbox import owners, trees
from hone.sandbox.client.api import PoolClient
from hone.sandbox.client.sandbox import RemoteSandbox
from hone.sandbox.contract import (
    Check,
    Health,
    LeaseLost,
    ProviderUnavailable,
    SandboxError,
    SandboxSpec,
    WriteContext,
)
from hone.sandbox.remote.server import ClientTls, raise_open_files, read_token
from hone.sandbox.remote.wire import Beat, LeaseRequest, MountBody, SpecBody, StatusReply
from hone.sandbox.settings import SandboxSettings
from hone.utils.http_client import new_session

_BEATS_PER_TTL = 4
_SETTLED_NS = 2_000_000_000  # the coarsest clock of a file system in use
_log = logging.getLogger(__name__)


class PoolProvider:
    """A context manager: entering connects to the pool, leaving closes all leases."""

    def __init__(self, settings: SandboxSettings) -> None:
        self._settings = settings
        self._tls = ClientTls(
            ca=settings.pool_ca_file,
            certificate=settings.pool_certificate_file,
            key=settings.pool_key_file,
        )
        self._owner = f"{_machine()}:{owners.new_name()}"
        self._numbers = itertools.count(1)
        self._leased: dict[str, RemoteSandbox] = {}
        self._closing_tasks: set[asyncio.Task[None]] = set()
        self._session: aiohttp.ClientSession | None = None

    # --- opening and closing

    async def __aenter__(self) -> PoolProvider:
        raise_open_files()
        async with contextlib.AsyncExitStack() as stack:
            session, self._pool = await stack.enter_async_context(self._connected())
            await _close_dead_owners(self._pool)
            self._closing = stack.pop_all()
        self._session = session
        self._renewing = asyncio.create_task(self._renew())
        return self

    @contextlib.asynccontextmanager
    async def _connected(self) -> AsyncIterator[tuple[aiohttp.ClientSession, PoolClient]]:
        if not self._settings.pool_url:
            raise ProviderUnavailable("the provider pool needs sandbox.pool_url", retryable=False)
        token_file = self._settings.pool_token_file
        token = await asyncio.to_thread(read_token, token_file) if token_file else ""
        owner_key = await asyncio.to_thread(_owner_key, self._settings.state_dir)
        async with new_session(context=self._tls.context()) as session:
            yield session, PoolClient(session, self._settings.pool_url, token, owner_key=owner_key)

    async def __aexit__(self, *exc: object) -> None:
        self._session = None
        self._renewing.cancel()
        await asyncio.wait({self._renewing, *self._closing_tasks})
        try:
            await self._pool.close_owner(self._owner)
        except ProviderUnavailable as error:
            _log.warning("%d leases are left to expire: %s", len(self._leased), error)
        finally:
            leased, self._leased = self._leased, {}
            for lease_id, sandbox in leased.items():
                sandbox.lose(_lost(lease_id))
                await sandbox.close()
            await self._closing.aclose()

    # --- the contract

    async def start(self, spec: SandboxSpec) -> RemoteSandbox:
        """Return a sandbox on one of the pool's nodes; wait while the pool is full.

        It ends with its lease: running and later calls then raise LeaseLost.

        Raises QueueTimeout, ProviderUnavailable.
        """
        if self._session is None:
            raise ProviderUnavailable("the provider is not open", retryable=False)
        body, contents = await pack_spec(spec)
        lease_id = f"{self._owner}:{next(self._numbers)}"
        request = LeaseRequest(
            lease_id=lease_id,
            owner=self._owner,
            spec=body,
            ttl_s=self._settings.lease_ttl_s,
            wait_s=self._settings.queue_timeout_s,
        )
        try:
            lease = await self._pool.allocate(request)
            sandbox = self._leased[lease_id] = RemoteSandbox(
                self._session,
                node_url=lease.node_url,
                sandbox_id=lease.sandbox_id,
                capability=lease.capability,
                spec=replace(spec, workdir=lease.workdir or spec.workdir),
                enforced=lease.enforced,
                on_close=lambda: self._close(lease_id),
                beat=Beat(lease_id=lease_id, generation=lease.generation),
            )
            await sandbox.start(contents)
        except BaseException:
            self._leased.pop(lease_id, None)
            task = asyncio.create_task(self._close_unused(lease_id))
            self._closing_tasks.add(task)
            task.add_done_callback(self._closing_tasks.discard)
            raise
        return sandbox

    async def _close(self, lease_id: str) -> None:
        if self._leased.pop(lease_id, None) is not None:
            await self._pool.close(lease_id)

    async def _close_unused(self, lease_id: str) -> None:
        """Close a lease, also one without a reply yet: the pool then refuses to create it later."""
        try:
            await self._pool.close(lease_id)
        except SandboxError as error:
            _log.warning("lease %s is left to expire: %s", lease_id, error)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(self._settings.lease_ttl_s / _BEATS_PER_TTL)
            beats = [sandbox.beat for sandbox in self._leased.values() if sandbox.beat]
            try:
                lost = await self._pool.heartbeat(beats)
            except SandboxError as error:  # a pool that restarts renews all leases
                _log.warning("%d leases were not renewed: %s", len(beats), error)
                continue
            for lease_id in lost:
                if (sandbox := self._leased.pop(lease_id, None)) is not None:
                    sandbox.lose(_lost(lease_id))

    async def health(self) -> Health:
        """Check the pool; also works before this provider is open."""
        try:
            async with self._connected() as (_, pool):
                status = await pool.status()
        except ProviderUnavailable as error:
            fix = "start it with hone pool, or set sandbox.pool_url and sandbox.pool_token_file"
            return Health(checks=(Check(name="pool", ok=False, detail=str(error), fix=fix),))
        return Health(checks=_checks(self._settings.pool_url, status))

    async def images(self) -> list[str]:
        """Return nothing: only the pool knows the images of its nodes."""
        return []

    async def digest(self, image: str) -> str:
        """Return "": only the pool knows the images of its nodes."""
        return ""

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        """Raise ProviderUnavailable: the nodes of a pool build nothing."""
        raise ProviderUnavailable(
            "the nodes of a pool build no Dockerfile: push the image into a registry, and name it in "
            "environment.docker_image of the task",
            retryable=False,
        )

    async def reconcile(self) -> int:
        """Close the leases of dead processes of this machine; return their number."""
        async with self._connected() as (_, pool):
            return await _close_dead_owners(pool)


def _lost(lease_id: str) -> LeaseLost:
    return LeaseLost(f"the lease {lease_id} expired, or its node was lost")


def _machine() -> str:
    """Return an id of this machine since its last boot: `owners.is_dead` applies to its processes only."""
    return owners.boot_id().replace("-", "")


def _owner_key(state_dir: Path | None) -> str:
    """Return the key of all pool clients of this user; a new one in its state directory where there is none.

    The processes share it so that each can close the leases of those that were killed.
    """
    path = owners.open_state_dir(state_dir or owners.default_state_dir()) / "pool-owner-key"
    if not path.exists():
        new = path.with_name(f"{path.name}-{secrets.token_hex(8)}")
        new.touch(mode=0o600)
        new.write_text(secrets.token_urlsafe(32))
        with contextlib.suppress(FileExistsError):  # another process was first
            os.link(new, path)
        new.unlink()
    return read_token(path)


async def _close_dead_owners(pool: PoolClient) -> int:
    leases = (await pool.status()).leases
    here = f"{_machine()}:"
    dead = {
        owner
        for owner in {lease.owner for lease in leases}
        if owner.startswith(here) and owners.is_dead(owner.removeprefix(here))
    }
    for owner in dead:
        await pool.close_owner(owner)
    return sum(lease.owner in dead for lease in leases)


def _checks(url: str, status: StatusReply) -> tuple[Check, ...]:
    active = [node for node in status.nodes if node.state == "active"]
    others = [f"{node.url} is {node.state}: {node.why}" for node in status.nodes if node.state != "active"]
    room = sum(node.capacity for node in active)
    return (
        Check(name="pool", ok=True, detail=f"{url}, {len(status.leases)} leases"),
        Check(
            name="pool: nodes",
            ok=bool(active),
            detail="; ".join([f"{len(active)} of {len(status.nodes)} active, room for {room}", *others]),
            fix="start one with hone node, and name it in hone pool --nodes",
        ),
    )


# --- specs for another machine: local directories become digests of their archives


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
