"""From a request to an active lease: queue, placement, start on a node, record in the store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from hone.sandbox.contract import (
    ImageUnavailable,
    LeaseLost,
    ProviderUnavailable,
    QueueTimeout,
    SandboxError,
)
from hone.sandbox.pool.clock import LeaseClock
from hone.sandbox.pool.fleet import Fleet
from hone.sandbox.pool.leases import Lease, Leases, State
from hone.sandbox.pool.metrics import Metrics
from hone.sandbox.pool.nodes import Node, Slot
from hone.sandbox.pool.queue import FairQueue
from hone.sandbox.pool.store import Store, StoredLease
from hone.sandbox.remote.wire import CreateReply, LeaseRequest
from hone.utils.clock import monotonic

_ATTEMPTS = 3  # on different nodes, before the client gets the error
_HOPELESS = frozenset({"unknown_image", "other_architecture"})  # image problems that every node has

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


@dataclass(slots=True, eq=False, kw_only=True)
class _Pending:
    """The state of a lease that requests wait for."""

    done: asyncio.Future[None]
    requested_at: float  # monotonic
    deadline: float  # monotonic, for the queue
    waiters: int = 0
    timer: asyncio.TimerHandle | None = None
    error: Exception | None = None  # of the latest failed start

    def disarm(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None


class Admission:
    """Admits leases and drives each until it is active or its requests get an error."""

    def __init__(
        self,
        *,
        leases: Leases,
        fleet: Fleet,
        store: Store,
        clock: LeaseClock,
        metrics: Metrics,
        totals: Counter[str],
        slots: dict[str, tuple[Node, Slot]],
        spawn: Spawn,
    ) -> None:
        """`slots` receives the slots of active leases; `spawn` starts tasks that the pool owns."""
        self._leases, self._fleet, self._store, self._clock = leases, fleet, store, clock
        self._metrics, self._totals, self._slots, self._spawn = metrics, totals, slots, spawn
        self._queue = FairQueue()
        self._pending: dict[str, _Pending] = {}
        self._stopped = False

    def stop(self) -> None:
        """Refuse queued and new requests."""
        self._stopped = True
        for lease in [lease for lease in self._leases if lease.state is State.QUEUED]:
            self._withdraw(lease).done.set_exception(_stopping())

    def waiting(self) -> dict[str, int]:
        """Return the number of queued requests by run."""
        return self._queue.waiting()

    async def admit(self, request: LeaseRequest) -> Lease:
        """Wait until the lease is active. See `Pool.allocate`."""
        lease = self._leases.get(request.lease_id)
        if lease is None:
            lease = self._add(request)
        elif lease.owner != request.owner:
            raise LeaseLost(f"lease {lease.id} belongs to another owner")
        pending = self._pending.get(lease.id)
        if pending is None:
            return self._leases.find_active(lease.id)
        pending.waiters += 1
        try:
            await asyncio.shield(pending.done)
        finally:
            pending.waiters -= 1
            if not pending.waiters and lease.state is State.QUEUED and not pending.done.done():
                self._withdraw(lease)
        return self._leases.find_active(lease.id)

    def _add(self, request: LeaseRequest) -> Lease:
        if self._stopped:
            raise _stopping()
        lease = Lease(
            id=request.lease_id,
            owner=request.owner,
            spec=request.spec,
            ttl_s=request.ttl_s,
            created=time.time(),
        )
        self._leases.admit(lease)
        now = monotonic()
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(_mark_retrieved)
        pending = _Pending(done=done, requested_at=now, deadline=now + request.wait_s)
        self._pending[lease.id] = pending
        self._queue.add(lease)
        self.dispatch()
        if lease.state is State.QUEUED:
            self._arm(lease, pending)
        return lease

    # --- the queue

    def _arm(self, lease: Lease, pending: _Pending) -> None:
        left = max(0.0, pending.deadline - monotonic())
        pending.timer = asyncio.get_running_loop().call_later(left, self._time_out, lease)

    def _time_out(self, lease: Lease) -> None:
        error = self._pending[lease.id].error
        reason = f"; the latest start failed: {error}" if error else ""
        self._refuse(lease, QueueTimeout(f"no sandbox became free in time{reason}"))

    def _withdraw(self, lease: Lease) -> _Pending:
        """Forget a queued lease."""
        self._queue.remove(lease)
        self._leases.withdraw(lease)
        pending = self._pending.pop(lease.id)
        pending.disarm()
        return pending

    def _refuse(self, lease: Lease, error: Exception) -> None:
        """Forget a queued lease and fail its requests."""
        self._withdraw(lease).done.set_exception(error)
        self._totals["refused"] += 1
        self._spawn(self._count_refusal())

    async def _count_refusal(self) -> None:
        with suppress(ProviderUnavailable):  # only a statistic is lost
            await self._store.count("refused")

    def end(self, lease: Lease, how: State) -> None:
        """Fail the requests that wait for a lease, because it is ending."""
        self._queue.remove(lease)
        if (pending := self._pending.pop(lease.id, None)) is not None:
            pending.disarm()
            pending.done.set_exception(LeaseLost(f"lease {lease.id} is {how}"))

    def dispatch(self) -> None:
        """Place queued leases while there is room."""
        if self._fleet.has_room():
            self._queue.serve(self._place)

    # --- places and starts

    def _place(self, lease: Lease) -> bool:
        node = self._fleet.choose(lease.spec, avoid=lease.tried)
        if node is None:
            return False
        generation = self._leases.place(lease, node.url)
        slot = self._fleet.reserve(node, lease.id, generation, lease.spec.image)
        pending = self._pending[lease.id]
        pending.disarm()
        self._metrics.waited.observe(monotonic() - pending.requested_at)
        self._spawn(self._start(lease, node, slot))
        return True

    async def _start(self, lease: Lease, node: Node, slot: Slot) -> None:
        try:
            grant = await self._fleet.start(node, slot, lease.spec)
            if lease.state is State.STARTING:
                await self._activate(lease, grant, node, slot)
            else:  # it ended meanwhile
                await self._fleet.tear_down(node, slot)
        except (SandboxError, ValueError, OSError) as error:
            if lease.state is State.STARTING:
                self._start_failed(lease, error)
        self.dispatch()

    async def _activate(self, lease: Lease, grant: CreateReply, node: Node, slot: Slot) -> None:
        lease.recorded = True
        stored = StoredLease(
            id=lease.id,
            generation=lease.generation,
            owner=lease.owner,
            spec=lease.spec.model_dump_json(),
            ttl_s=lease.ttl_s,
            created=lease.created,
            node_url=lease.node_url,
            grant=grant.model_dump_json(),
        )
        try:
            await self._store.activate(stored)
        except ProviderUnavailable:
            lease.recorded = False
            await self._fleet.tear_down(node, slot)
            raise
        self._totals["allocated"] += 1
        if lease.state is not State.STARTING:  # it ended while it was written; its end was written after it
            await self._fleet.tear_down(node, slot)
            return
        self._leases.activate(lease, grant, self._clock.now())
        self._slots[lease.id] = node, slot
        pending = self._pending.pop(lease.id)
        pending.done.set_result(None)
        self._metrics.allocated.observe(monotonic() - pending.requested_at)

    def _start_failed(self, lease: Lease, error: Exception) -> None:
        """Queue the lease again for another node, unless every node would fail the same way."""
        self._leases.put_back(lease)
        pending = self._pending[lease.id]
        pending.error = error
        hopeless = not isinstance(error, ProviderUnavailable) or (
            isinstance(error, ImageUnavailable) and error.problem in _HOPELESS
        )
        if not pending.waiters:
            self._withdraw(lease)
        elif hopeless or len(lease.tried) >= _ATTEMPTS or not self._fleet.can_try(lease.tried):
            self._refuse(lease, error)
        else:
            self._queue.put_back(lease)
            self._arm(lease, pending)


def _stopping() -> ProviderUnavailable:
    return ProviderUnavailable("the pool is shutting down", retryable=True)


def _mark_retrieved(done: asyncio.Future[None]) -> None:
    """Retrieve the exception, in case every waiting request was cancelled."""
    if not done.cancelled():
        done.exception()
