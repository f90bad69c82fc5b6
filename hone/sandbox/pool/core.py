"""The pool: leases on the sandboxes of many nodes, without HTTP.

Invariants:
- every decision is one step of the event loop, so concurrent events have an order;
- a reply leaves only when its transaction is on the disk.
"""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections.abc import Callable, Collection, Coroutine, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hone.sandbox.contract import LeaseLost, ProviderUnavailable
from hone.sandbox.pool.admission import Admission
from hone.sandbox.pool.fleet import Fleet, Timing
from hone.sandbox.pool.leases import ENDS, Lease, LeaseClock, Leases, State
from hone.sandbox.pool.metrics import Metrics
from hone.sandbox.pool.nodes import NodeApi
from hone.sandbox.pool.store import Store, StoredLease
from hone.sandbox.remote.wire import Beat, LeaseReply, LeaseRequest, LeaseRow, NodeRequest, StatusReply
from hone.utils.concurrency import cancel_all

_log = logging.getLogger(__name__)
_REAP_S = 0.5
_PRUNE_S = 30.0
_TOMBSTONE_S = 900.0  # longer than any request that is under way when its lease ends
_URL = re.compile(
    r"(?P<scheme>https?)://(?P<host>[a-z0-9](?:[a-z0-9._-]*[a-z0-9])?|\[[0-9a-f:.]+\])"
    r"(?::(?P<port>[0-9]{1,5}))?(?P<path>(?:/[a-z0-9._~-]*)*)",
    re.IGNORECASE | re.ASCII,
)
_URL_MAX = 512  # characters


class Pool:
    """An async context manager: entering continues from the store, leaving keeps all leases."""

    def __init__(
        self,
        store: Path,
        connect: Callable[[str], NodeApi],
        *,
        nodes: Sequence[str] = (),
        max_sandboxes: int = 0,
        timing: Timing | None = None,
        open_store: Callable[[Path], Store] = Store,
    ) -> None:
        """`nodes` are added to those in the store, with `max_sandboxes` each (0: the node's own capacity)."""
        self._store = open_store(store)
        self._connect = connect
        self._nodes = [NodeRequest(url=clean_url(url), max_sandboxes=max_sandboxes) for url in nodes]
        self._timing = timing or Timing()
        self._clock = LeaseClock()
        self._leases = Leases(self._store.next_generation)
        self._tasks: set[asyncio.Task[Any]] = set()
        self.metrics = Metrics(self.status)

    # --- opening and closing

    async def __aenter__(self) -> Pool:
        contents = await self._store.open()
        self.id = self._store.pool_id
        self.fleet = Fleet(
            self._connect,
            pool_id=self.id,
            timing=self._timing,
            on_lost=self._lost,
            on_room=lambda: self._admission.dispatch(),
        )
        self._admission = Admission(
            leases=self._leases,
            fleet=self.fleet,
            store=self._store,
            clock=self._clock,
            metrics=self.metrics,
            spawn=self._spawn,
        )
        now = self._clock.now()
        for lease_id, how in contents.tombstones.items():
            self._leases.set_tombstone(lease_id, State(how), now)
        for node in contents.nodes:
            self.fleet.put(node)
        for node in self._nodes:
            if self.fleet.get(node.url) is None:
                self.fleet.put(node)
        for stored in contents.leases:
            self._restore(stored, now)
        self._reaper = self._spawn(self._reap())
        self._spawn(self._prune())
        return self

    def _restore(self, stored: StoredLease, now: float) -> None:
        """Restore a lease with its full time to live: its client could not renew it meanwhile."""
        lease = Lease(
            **dict(stored),
            state=State.ACTIVE,
            expires=now + stored.ttl_s,
            recorded=True,
        )
        self._leases.admit(lease)
        url, sandbox_id = lease.node_url, stored.grant.id
        node = self.fleet.get(url) or self.fleet.put(NodeRequest(url=url, state="draining"))
        lease.slot = self.fleet.adopt(node, lease.id, lease.generation, lease.spec.image, sandbox_id)

    async def __aexit__(self, *exc: object) -> None:
        await cancel_all(list(self._tasks))
        await self.fleet.close()
        await self._store.close()

    async def stop(self) -> None:
        """Refuse queued and new requests. Leases stay; none expires, for no client can renew."""
        self._reaper.cancel()
        self._admission.stop()

    def _spawn(self, work: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._finished)
        return task

    def _finished(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("a task of the pool failed", exc_info=error)

    # --- while it lives

    async def allocate(self, request: LeaseRequest, *, owner_key: str = "") -> LeaseReply:
        """Return the lease when its sandbox is ready; the same lease for the same id while it lives.

        Cancellation withdraws a queued lease; a placed one lives until it is closed or expires, because its
        client may ask again. `owner_key` is the SHA-256 of the key that later requests must present.
        Raises:
            QueueTimeout: no place became free within `wait_s`.
            LeaseLost: the lease ended before, or meanwhile, or belongs to another owner.
            ProviderUnavailable: no node could start the sandbox.
        """
        lease = await self._admission.admit(request, owner_key=owner_key)
        assert lease.grant is not None
        return LeaseReply(
            lease_id=lease.id,
            generation=lease.generation,
            node_url=lease.node_url,
            sandbox_id=lease.grant.id,
            capability=lease.grant.capability,
            workdir=lease.grant.workdir,
            enforced=lease.grant.enforced,
            expires_in_s=max(0.0, lease.expires - self._clock.now()),
        )

    def heartbeat(self, beats: Sequence[Beat], *, owner_key: str = "") -> list[str]:
        """Renew leases; return the ids that ended, are of another generation or of another owner."""
        return self._leases.renew(beats, self._clock.now(), owner_key=owner_key)

    def look(self, lease_id: str, *, owner_key: str = "") -> LeaseRow:
        """Return the facts of a lease. Raises LeaseLost when it ended, or belongs to another owner."""
        lease = self._leases.get(lease_id)
        if lease is None:
            raise LeaseLost(f"lease {lease_id} is {self._leases.ended_as(lease_id) or 'unknown'}")
        _require_owner(lease, (owner_key,))
        return self._row(lease, self._clock.now())

    def begin_call(self, lease_id: str, *, owner_keys: Collection[str] | None = None) -> Lease:
        """Return an active lease and keep it from expiring until `finish_call`.

        Raises LeaseLost, also when the lease's owner key is none of these; None permits any.
        """
        lease = self._leases.find_active(lease_id)
        _require_owner(lease, owner_keys)
        lease.calls += 1
        return lease

    def finish_call(self, lease: Lease) -> None:
        lease.calls -= 1
        lease.expires = self._clock.now() + lease.ttl_s

    # --- ends

    async def close(
        self, lease_id: str, generation: int | None = None, *, owner_keys: Collection[str] | None = None
    ) -> None:
        """End a lease and its sandbox; its id, even an unknown one, is refused from now on.

        Returns when the node has confirmed, or did not reply in time: then the pool keeps trying.
        Raises LeaseLost when the active lease under this id is of another generation, or its
        owner key is none of these; None permits any.
        """
        lease = self._leases.get(lease_id)
        if lease is None:
            if self._leases.ended_as(lease_id) is None:
                self._leases.set_tombstone(lease_id, State.CLOSED, self._clock.now())
                await self._store.end(lease_id, State.CLOSED, counted=False)
            return
        _require_owner(lease, owner_keys)
        if generation is not None and lease.generation != generation:
            raise LeaseLost(f"lease {lease_id} is of another generation")
        await asyncio.shield(self._end(lease, State.CLOSED))

    async def close_owner(self, owner: str, *, owner_key: str = "") -> int:
        """End all leases of an owner; return their number."""
        leases = [lease for lease in self._leases if (lease.owner, lease.owner_key) == (owner, owner_key)]
        endings = [self._end(lease, State.CLOSED) for lease in leases]
        if endings:
            await asyncio.wait(endings)
        return len(endings)

    def _end(self, lease: Lease, how: State) -> asyncio.Task[None]:
        """Start to end a lease, once; later calls return the same task."""
        if self._leases.end(lease, how):
            self._admission.end(lease, how)
            lease.ending = self._spawn(self._finish(lease, how))
        assert lease.ending is not None
        return lease.ending

    async def _finish(self, lease: Lease, how: State) -> None:
        try:
            await self._store.end(lease.id, how, counted=lease.recorded)
        finally:
            slot, lease.slot = lease.slot, None  # None: lost, or the start tears it down
            if slot is not None and slot.state == "active":
                await self.fleet.tear_down(slot)
            self._leases.finish_end(lease, self._clock.now())
            self._admission.dispatch()

    def _lost(self, lease_id: str, generation: int) -> None:
        """End a lease whose sandbox is gone; it may not be in the store yet."""
        lease = self._leases.get(lease_id)
        if lease is None or lease.generation != generation:
            return
        if lease.state in (State.STARTING, State.ACTIVE):
            lease.slot = None
            self._end(lease, State.LOST)

    async def _reap(self) -> None:
        while True:
            await asyncio.sleep(_REAP_S)
            for lease in self._leases.due(self._clock.now()):
                self._end(lease, State.EXPIRED)
            self._admission.refuse_late()

    async def _prune(self) -> None:
        while True:
            await asyncio.sleep(_PRUNE_S)
            old = self._leases.take_old_tombstones(self._clock.now() - _TOMBSTONE_S)
            with suppress(ProviderUnavailable):  # they are read and pruned again after a restart
                await self._store.prune(old)

    # --- nodes

    async def put_node(self, request: NodeRequest) -> None:
        """Add a node, or change how one is used; kept across restarts."""
        node = request.model_copy(update={"url": clean_url(request.url)})
        await self._store.put_node(node)
        self.fleet.put(node)

    async def remove_node(self, url: str, *, force: bool) -> None:
        """Forget a node. Raises ValueError while it has leases; with `force` they are lost."""
        url = clean_url(url)
        node = self.fleet.get(url)
        if node is None:
            raise ValueError(f"there is no node {url}")
        if node.slots and not force:
            raise ValueError(f"{len(node.slots)} sandboxes live on {url}: drain it first, or use force")
        node.draining = True
        endings = [
            self._end(lease, State.LOST)
            for lease_id, _ in list(node.slots)
            if (lease := self._leases.get(lease_id)) is not None and lease.node_url == url
        ]
        if endings:
            await asyncio.wait(endings)
        await self._store.remove_node(url)
        await self.fleet.remove(url)

    # --- what there is

    def unhealthy(self) -> str:
        """Return why no sandbox can start, or ""."""
        if any(node.state == "active" for node in self.fleet):
            return ""
        return "the pool has no node that can start sandboxes"

    def status(self, *, seen_by: str | None = None) -> StatusReply:
        """Return nodes, leases and queue.

        `seen_by` is the SHA-256 of an owner's key: ids and owners of all other leases are left out, for
        they would let their reader take these over. "" owns none, and None may see everything.
        """
        now = self._clock.now()
        rows: list[LeaseRow] = []
        for lease in self._leases:
            row = self._row(lease, now)
            if seen_by is not None and (not seen_by or lease.owner_key != seen_by):
                row = row.model_copy(update={"lease_id": "", "owner": "", "generation": 0})
            rows.append(row)
        return StatusReply(
            nodes=[node.row() for node in self.fleet],
            leases=rows,
            queued=self._admission.waiting(),
            totals={name: self._store.totals[name] for name in ("allocated", *ENDS, "refused")},
        )

    def _row(self, lease: Lease, now: float) -> LeaseRow:
        return LeaseRow(
            lease_id=lease.id,
            generation=lease.generation,
            owner=lease.owner,
            run=lease.spec.run,
            image=lease.spec.image,
            state=lease.state,
            node_url=lease.node_url,
            age_s=max(0.0, time.time() - lease.created),
            expires_in_s=max(0.0, lease.expires - now) if lease.state is State.ACTIVE else 0.0,
        )


def _require_owner(lease: Lease, owner_keys: Collection[str] | None) -> None:
    if owner_keys is not None and lease.owner_key not in owner_keys:
        raise LeaseLost(f"lease {lease.id} belongs to another owner")


def clean_url(url: str) -> str:
    """Return the normal form of a node's URL: the same node has the same one.

    Raises ValueError unless it is an HTTP URL of a host, and perhaps a port and a path, in plain ASCII.
    """
    found = _URL.fullmatch(url.strip(" ")) if len(url) <= _URL_MAX else None
    port = int(found["port"]) if found and found["port"] else 0
    if found is None or port > 65535:
        raise ValueError(f"{url[:_URL_MAX]!r} is not an address such as http://node-1:18091")
    scheme, host, path = found["scheme"].lower(), found["host"].lower(), found["path"].rstrip("/")
    return f"{scheme}://{host}{f':{port}' if found['port'] else ''}{path}"
