"""The leases and their state machine, and the clock by which they expire.

    queued -> starting -> active -> closing -> closed | expired | lost
       |  <-- (the node failed) |                 ^
       +-------+-----------------+----------------+

Every end goes through `end`, which succeeds once: the first of a close, an expiry and a loss wins, and later
renewals are refused. Every placement gets a new generation, which distinguishes its sandbox from those of
earlier placements. A tombstone remembers an ended lease for a while, so that a late request cannot revive it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import StrEnum

from hone.sandbox.contract import LeaseLost
from hone.sandbox.pool.nodes import Slot
from hone.sandbox.remote.wire import Beat, CreateReply, SpecBody
from hone.utils.clock import Clock, monotonic

STEP_S = 2.0  # the longest time between two calls of `LeaseClock.now` that counts


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
    owner_key: str = ""  # SHA-256 of the key that requests for this lease must present; "" without one
    state: State = State.QUEUED
    end: State | None = None  # how it ends, from `closing` on
    generation: int = 0  # 0 before its first placement
    node_url: str = ""
    grant: CreateReply | None = None  # of the node, once started
    expires: float = 0.0  # lease time, once active
    recorded: bool = False  # its activation was written to the store
    calls: int = 0  # proxied calls under way; it does not expire meanwhile
    tried: set[str] = field(default_factory=set[str])  # nodes that failed to start it
    slot: Slot | None = None  # while active
    ending: asyncio.Task[None] | None = None  # from `closing` on


class LeaseClock:
    """Monotonic seconds without the times in which this process was stopped or starved.

    No client can renew a lease then, so that time must not expire it.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._now = 0.0

    def now(self) -> float:
        """Return lease time in seconds; call it more often than every STEP_S."""
        at = self._clock()
        self._now += min(max(at - self._last, 0.0), STEP_S)
        self._last = at
        return self._now


class Leases:
    """All leases, and the tombstones of those that ended lately."""

    def __init__(self, generation: Callable[[], int]) -> None:
        """`generation` returns a greater number at every call, also across restarts."""
        self._generation = generation
        self._live: dict[str, Lease] = {}
        self._tombstones: dict[str, tuple[State, float]] = {}  # oldest first

    def __len__(self) -> int:
        return len(self._live)

    def __iter__(self) -> Iterator[Lease]:
        return iter(self._live.values())

    def get(self, lease_id: str) -> Lease | None:
        return self._live.get(lease_id)

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

    def activate(self, lease: Lease, now: float) -> None:
        """starting -> active."""
        self._move(lease, State.STARTING, State.ACTIVE)
        lease.expires = now + lease.ttl_s

    # --- while it lives

    def find_active(self, lease_id: str) -> Lease:
        """Return a lease. Raises LeaseLost unless it is active."""
        lease = self._live.get(lease_id)
        if lease is None or lease.state is not State.ACTIVE:
            state = lease.state if lease else self.ended_as(lease_id) or "unknown"
            raise LeaseLost(f"lease {lease_id} is {state}")
        return lease

    def renew(self, beats: Iterable[Beat], now: float, *, owner_key: str = "") -> list[str]:
        """Extend the owner's leases that are active and of this generation; return all other ids."""
        lost: list[str] = []
        for beat in beats:
            lease = self._live.get(beat.lease_id)
            if (
                lease is None
                or lease.state is not State.ACTIVE
                or lease.generation != beat.generation
                or lease.owner_key != owner_key
            ):
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
        lease.state, lease.end = State.CLOSING, how
        return True

    def finish_end(self, lease: Lease, now: float) -> None:
        """closing -> closed, expired or lost."""
        assert lease.end is not None
        self._move(lease, State.CLOSING, lease.end)
        del self._live[lease.id]
        self.set_tombstone(lease.id, lease.end, now)

    def withdraw(self, lease: Lease) -> None:
        """Forget a queued lease that was never placed or failed to start: its id may come again."""
        assert lease.state is State.QUEUED
        del self._live[lease.id]

    def set_tombstone(self, lease_id: str, how: State, now: float) -> None:
        """Refuse a lease id from now on; the first tombstone counts."""
        self._tombstones.setdefault(lease_id, (how, now))

    def due(self, now: float) -> list[Lease]:
        """Return the expired active leases."""
        return [
            lease
            for lease in self._live.values()
            if lease.state is State.ACTIVE and not lease.calls and lease.expires <= now
        ]

    def take_old_tombstones(self, before: float) -> list[str]:
        """Forget the tombstones set before a time; return their ids."""
        old = [lease_id for lease_id, (_, at) in self._tombstones.items() if at < before]
        for lease_id in old:
            del self._tombstones[lease_id]
        return old

    def _move(self, lease: Lease, before: State, after: State) -> None:
        assert lease.state is before, f"{lease.id} is {lease.state}, not {before}"
        lease.state = after
