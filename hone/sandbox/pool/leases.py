"""The leases and their state machine, without input, output or a clock.

    queued -> starting -> active -> closing -> closed | expired | lost
       |  <-- (the node failed) |                 ^
       +-------+-----------------+----------------+

Every end goes through `end`, which succeeds once: the first of a close, an expiry and a loss wins, and later
renewals are refused. Every placement gets a new generation, which distinguishes its sandbox from those of
earlier placements. A tombstone remembers an ended lease for a while, so that a late request cannot revive it.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from hone.sandbox.contract import LeaseLost
from hone.sandbox.remote.wire import Beat, CreateReply, SpecBody


class State(StrEnum):
    QUEUED = "queued"
    STARTING = "starting"
    ACTIVE = "active"
    CLOSING = "closing"
    CLOSED = "closed"
    EXPIRED = "expired"
    LOST = "lost"


ENDS = frozenset({State.CLOSED, State.EXPIRED, State.LOST})


@dataclass(slots=True, eq=False, kw_only=True)
class Lease:
    """One client's right to one sandbox."""

    id: str
    owner: str
    spec: SpecBody
    ttl_s: float
    created: float  # wall clock, for display only
    state: State = State.QUEUED
    end: State | None = None  # how it ends, from `closing` on
    generation: int = 0  # 0 before its first placement
    node_url: str = ""
    grant: CreateReply | None = None  # of the node, once active
    expires: float = 0.0  # lease time, once active
    recorded: bool = False  # its activation was written to the store
    calls: int = 0  # proxied calls under way; it does not expire meanwhile
    tried: set[str] = field(default_factory=set[str])  # nodes that failed to start it


class Leases:
    """All leases, and the tombstones of those that ended lately."""

    def __init__(self, generation: Callable[[], int]) -> None:
        """`generation` returns a greater number at every call, also across restarts."""
        self._generation = generation
        self._live: dict[str, Lease] = {}
        self._of_owner: dict[str, dict[str, Lease]] = {}
        self._tombstones: dict[str, tuple[State, float]] = {}  # oldest first
        self._due: list[tuple[float, str]] = []  # a heap; an entry may be older than the lease's expiry
        self.counts: Counter[State] = Counter()  # by state

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._live.values())

    def get(self, lease_id: str) -> Lease | None:
        return self._live.get(lease_id)

    def of_owner(self, owner: str) -> list[Lease]:
        return list(self._of_owner.get(owner, {}).values())

    def ended_as(self, lease_id: str) -> State | None:
        """Return how a lease ended, or None without a tombstone."""
        tombstone = self._tombstones.get(lease_id)
        return tombstone[0] if tombstone else None

    # --- the way in

    def admit(self, lease: Lease) -> None:
        """Add a queued lease, or an active one from the store. Raises LeaseLost when it has a tombstone."""
        if (end := self.ended_as(lease.id)) is not None:
            raise LeaseLost(f"lease {lease.id} is {end}")
        assert lease.id not in self._live
        self._live[lease.id] = lease
        self._of_owner.setdefault(lease.owner, {})[lease.id] = lease
        self.counts[lease.state] += 1
        if lease.state is State.ACTIVE:
            heapq.heappush(self._due, (lease.expires, lease.id))

    def place(self, lease: Lease, node_url: str) -> int:
        """queued -> starting; return the generation."""
        self._move(lease, State.QUEUED, State.STARTING)
        lease.generation = self._generation()
        lease.node_url = node_url
        return lease.generation

    def put_back(self, lease: Lease) -> None:
        """starting -> queued: its node failed to start it."""
        self._move(lease, State.STARTING, State.QUEUED)
        lease.tried.add(lease.node_url)
        lease.node_url = ""

    def activate(self, lease: Lease, grant: CreateReply, now: float) -> None:
        """starting -> active."""
        self._move(lease, State.STARTING, State.ACTIVE)
        lease.grant = grant
        lease.expires = now + lease.ttl_s
        heapq.heappush(self._due, (lease.expires, lease.id))

    # --- while it lives

    def find_active(self, lease_id: str, generation: int | None = None) -> Lease:
        """Return a lease. Raises LeaseLost unless it is active and of this generation."""
        lease = self._live.get(lease_id)
        if lease is None or lease.state is not State.ACTIVE:
            state = lease.state if lease else self.ended_as(lease_id) or "unknown"
            raise LeaseLost(f"lease {lease_id} is {state}")
        if generation is not None and generation != lease.generation:
            raise LeaseLost(f"lease {lease_id} is of another generation")
        return lease

    def renew(self, beats: Iterable[Beat], now: float) -> list[str]:
        """Extend the leases that are active and of this generation; return all other ids."""
        lost: list[str] = []
        for beat in beats:
            lease = self._live.get(beat.lease_id)
            if lease is None or lease.state is not State.ACTIVE or lease.generation != beat.generation:
                lost.append(beat.lease_id)
            else:
                lease.expires = now + lease.ttl_s
        return lost

    # --- the ways out

    def end(self, lease: Lease, how: State) -> bool:
        """queued, starting or active -> closing. False when another end came first."""
        assert how in ENDS
        if lease.state is State.CLOSING or lease.state in ENDS:
            return False
        self._move(lease, lease.state, State.CLOSING)
        lease.end = how
        return True

    def finish_end(self, lease: Lease, now: float) -> None:
        """closing -> closed, expired or lost."""
        assert lease.end is not None
        self._move(lease, State.CLOSING, lease.end)
        self._forget(lease)
        self.set_tombstone(lease.id, lease.end, now)

    def withdraw(self, lease: Lease) -> None:
        """Forget a queued lease that was never placed or failed to start: its id may come again."""
        assert lease.state is State.QUEUED
        self._forget(lease)

    def set_tombstone(self, lease_id: str, how: State, now: float) -> None:
        """Refuse a lease id from now on; the first tombstone counts."""
        self._tombstones.setdefault(lease_id, (how, now))

    def take_due(self, now: float) -> list[Lease]:
        """Return the expired active leases; each is due again unless it is ended now."""
        due: list[Lease] = []
        while self._due and self._due[0][0] <= now:
            _, lease_id = heapq.heappop(self._due)
            lease = self._live.get(lease_id)
            if lease is None or lease.state is not State.ACTIVE:
                continue
            if lease.calls:
                lease.expires = now + lease.ttl_s
            if lease.expires > now:
                heapq.heappush(self._due, (lease.expires, lease_id))
            else:
                due.append(lease)
        return due

    def take_old_tombstones(self, before: float) -> list[str]:
        """Forget the tombstones set before a time; return their ids."""
        old: list[str] = []
        for lease_id, (_, at) in self._tombstones.items():
            if at >= before:
                break
            old.append(lease_id)
        for lease_id in old:
            del self._tombstones[lease_id]
        return old

    def _move(self, lease: Lease, before: State, after: State) -> None:
        assert lease.state is before, f"{lease.id} is {lease.state}, not {before}"
        lease.state = after
        self.counts[before] -= 1
        self.counts[after] += 1

    def _forget(self, lease: Lease) -> None:
        self.counts[lease.state] -= 1
        del self._live[lease.id]
        siblings = self._of_owner[lease.owner]
        del siblings[lease.id]
        if not siblings:
            del self._of_owner[lease.owner]
