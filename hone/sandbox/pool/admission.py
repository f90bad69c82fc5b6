"""From a request to an active lease: queue, placement, start on a node, record in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterator
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
from hone.sandbox.pool.fleet import Fleet
from hone.sandbox.pool.leases import Lease, LeaseClock, Leases, State
from hone.sandbox.pool.metrics import Metrics
from hone.sandbox.pool.nodes import Slot
from hone.sandbox.pool.store import Store, StoredLease
from hone.sandbox.remote.wire import CreateReply, LeaseRequest
from hone.utils.clock import monotonic

_ATTEMPTS = 3  # on different nodes, before the client gets the error
_HOPELESS = frozenset({"unknown_image", "other_architecture"})  # image problems that every node has

Spawn = Callable[[Coroutine[Any, Any, None]], asyncio.Task[None]]


class FairQueue:
    """Leases that wait for a node: runs take turns; within a run the longest wait goes first.

    A lease that cannot be placed now (too many starts of its image) lets others of its run pass, except those
    of the same image.
    """

    def __init__(self) -> None:
        self._runs: dict[str, dict[str, Lease]] = {}  # run -> lease id -> lease, in the order of service

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting leases by run."""
        return {run: len(leases) for run, leases in self._runs.items()}

    def add(self, lease: Lease) -> None:
        """Add a lease behind all others of its run."""
        self._runs.setdefault(lease.spec.run, {})[lease.id] = lease

    def put_back(self, lease: Lease) -> None:
        """Add a lease, whose node failed, before all others of its run."""
        self._runs[lease.spec.run] = {lease.id: lease, **self._runs.get(lease.spec.run, {})}

    def remove(self, lease: Lease) -> None:
        """Remove a lease, if it is queued."""
        leases = self._runs.get(lease.spec.run, {})
        if leases.pop(lease.id, None) is not None and not leases:
            del self._runs[lease.spec.run]

    def serve(self, place: Callable[[Lease], bool]) -> None:
        """Call `place` with run after run's oldest leases until it has refused one of every image."""
        passed = 0
        while self._runs and passed < len(self._runs):
            run = next(iter(self._runs))
            served = next((lease for lease in self._heads(run) if place(lease)), None)
            passed = 0 if served else passed + 1
            if served:
                self.remove(served)
            if run in self._runs:
                self._runs[run] = self._runs.pop(run)  # its turn is over

    def _heads(self, run: str) -> Iterator[Lease]:
        """Yield the first lease of each image, the longest wait first."""
        images: set[str] = set()
        for lease in self._runs[run].values():
            if lease.spec.image not in images:
                images.add(lease.spec.image)
                yield lease


@dataclass(slots=True, eq=False, kw_only=True)
class _Pending:
    """The state of a lease that requests wait for."""

    done: asyncio.Future[None]
    requested_at: float  # monotonic
    deadline: float  # monotonic, for the queue
    waiters: int = 0
    error: Exception | None = None  # of the latest failed start


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
        spawn: Spawn,
    ) -> None:
        """`spawn` starts tasks that the pool owns."""
        self._leases, self._fleet, self._store, self._clock = leases, fleet, store, clock
        self._metrics, self._spawn = metrics, spawn
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

    async def admit(self, request: LeaseRequest, *, owner_key: str) -> Lease:
        """Wait until the lease is active. See `Pool.allocate`."""
        lease = self._leases.get(request.lease_id)
        if lease is None:
            lease = self._add(request, owner_key)
        elif (lease.owner, lease.owner_key) != (request.owner, owner_key):
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

    def _add(self, request: LeaseRequest, owner_key: str) -> Lease:
        if self._stopped:
            raise _stopping()
        lease = Lease(
            id=request.lease_id,
            owner=request.owner,
            spec=request.spec,
            ttl_s=request.ttl_s,
            created=time.time(),
            owner_key=owner_key,
        )
        self._leases.admit(lease)
        now = monotonic()
        done = asyncio.get_running_loop().create_future()
        done.add_done_callback(lambda done: done.cancelled() or done.exception())  # mark it as retrieved
        self._pending[lease.id] = _Pending(done=done, requested_at=now, deadline=now + request.wait_s)
        self._queue.add(lease)
        self.dispatch()
        return lease

    # --- the queue

    def refuse_late(self) -> None:
        """Refuse the queued leases whose deadline has passed."""
        now = monotonic()
        for lease_id, pending in list(self._pending.items()):
            lease = self._leases.get(lease_id)
            if lease is not None and lease.state is State.QUEUED and pending.deadline <= now:
                reason = f"; the latest start failed: {pending.error}" if pending.error else ""
                self._refuse(lease, QueueTimeout(f"no sandbox became free in time{reason}"))

    def _withdraw(self, lease: Lease) -> _Pending:
        """Forget a queued lease."""
        self._queue.remove(lease)
        self._leases.withdraw(lease)
        return self._pending.pop(lease.id)

    def _refuse(self, lease: Lease, error: Exception) -> None:
        """Forget a queued lease and fail its requests."""
        self._withdraw(lease).done.set_exception(error)
        self._spawn(self._count_refusal())

    async def _count_refusal(self) -> None:
        with suppress(ProviderUnavailable):  # only a statistic is lost
            await self._store.count_refusal()

    def end(self, lease: Lease, how: State) -> None:
        """Fail the requests that wait for a lease, because it is ending."""
        self._queue.remove(lease)
        if (pending := self._pending.pop(lease.id, None)) is not None:
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
        slot = node.reserve(lease.id, generation, lease.spec.image)
        self._metrics.waited.observe(monotonic() - self._pending[lease.id].requested_at)
        self._spawn(self._start(lease, slot))
        return True

    async def _start(self, lease: Lease, slot: Slot) -> None:
        try:
            grant = await self._fleet.start(slot, lease.spec)
            if lease.state is State.STARTING:
                await self._activate(lease, grant, slot)
            else:  # it ended meanwhile
                await self._fleet.tear_down(slot)
        except (SandboxError, ValueError, OSError) as error:
            if lease.state is State.STARTING:
                self._start_failed(lease, error)
        self.dispatch()

    async def _activate(self, lease: Lease, grant: CreateReply, slot: Slot) -> None:
        lease.grant, lease.recorded = grant, True
        fields = {name: getattr(lease, name) for name in StoredLease.model_fields}
        try:
            await self._store.activate(StoredLease.model_construct(**fields))
        except ProviderUnavailable:
            lease.recorded = False
            await self._fleet.tear_down(slot)
            raise
        if lease.state is not State.STARTING:  # it ended while it was written; its end was written after it
            await self._fleet.tear_down(slot)
            return
        self._leases.activate(lease, self._clock.now())
        lease.slot = slot
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


def _stopping() -> ProviderUnavailable:
    return ProviderUnavailable("the pool is shutting down", retryable=True)
