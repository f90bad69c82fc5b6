"""One node as the pool sees it: its slots, its latest listing, and its circuit breaker.

A slot stands for one start on a node. Invariant: it is released only when its sandbox certainly does not
exist: the node confirmed the destruction, a later listing lacks it, or it has expired on the node.
"""

from __future__ import annotations

import asyncio
import math
import statistics
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.reference import canonical
from hone.sandbox.remote.wire import CreateReply, CreateRequest, NodeReply, NodeRow
from hone.utils.clock import monotonic

Key = tuple[str, int]  # lease id and generation
DESTROYS = 64  # sandboxes of one node destroyed at a time
HOST_IMAGE = "host"  # the node's own system directories: nothing to pull


class NodeApi(Protocol):
    """The node operations that a pool needs; `hone.sandbox.client.api.NodeClient` implements them.

    Every method raises what the node raised, and Unreachable when there was no reply.
    """

    async def info(self) -> NodeReply: ...

    async def create(self, request: CreateRequest, *, key: str) -> CreateReply: ...

    async def destroy(self, sandbox_id: str) -> None: ...

    async def renew(self, ids: Sequence[str], ttl_s: float) -> Sequence[str]: ...


@dataclass(slots=True, eq=False, kw_only=True)
class Slot:
    """`unconfirmed`: the node did not reply whether the sandbox was started, or destroyed."""

    node: Node
    lease_id: str
    generation: int
    image: str
    state: Literal["starting", "active", "closing", "unconfirmed"]
    since: float  # monotonic, of the state
    sandbox_id: str = ""  # "" until the node has replied
    alive_until: float = math.inf  # monotonic; it has expired on the node by then unless renewed

    @property
    def key(self) -> Key:
        return self.lease_id, self.generation

    def settle(self, state: Literal["active", "closing", "unconfirmed"]) -> None:
        """Enter a state other than `starting`."""
        if self.state == "starting":
            self.node.starting -= Counter([self.image])
        self.state, self.since = state, monotonic()

    def release(self) -> None:
        self.settle("closing")
        self.node.slots.pop(self.key, None)


class Breaker:
    """A circuit breaker: opens after `threshold` failures in a row, each time for twice as long."""

    def __init__(self, *, threshold: int = 3, first_s: float = 15.0, longest_s: float = 300.0) -> None:
        self._threshold, self._first_s, self._longest_s = threshold, first_s, longest_s
        self._in_a_row = 0
        self._opened = 0  # times in a row
        self._open_until = -math.inf

    def failed(self, now: float) -> None:
        self._in_a_row += 1
        if self._in_a_row >= self._threshold and now >= self._open_until:
            self._open_until = now + min(self._first_s * 2**self._opened, self._longest_s)
            self._opened += 1

    def succeeded(self) -> None:
        self._in_a_row = self._opened = 0
        self._open_until = -math.inf

    def is_open(self, now: float) -> bool:
        return now < self._open_until

    @property
    def is_trying(self) -> bool:
        """Open or half-open: at most one start at a time."""
        return self._opened > 0


@dataclass(slots=True, eq=False, kw_only=True)
class Node:
    url: str
    api: NodeApi
    max_sandboxes: int = 0  # 0: the node's own capacity
    draining: bool = False
    start_gate: int = 16  # starts at a time
    slots: dict[Key, Slot] = field(default_factory=dict[Key, Slot])
    info: NodeReply | None = None
    images: set[str] = field(default_factory=set[str])
    foreign: int = 0  # sandboxes on it that serve no lease of this pool
    unreachable: str = "it was not probed yet"  # why; "" when it answers
    missed: int = 0  # probes in a row without an answer
    failures: int = 0  # starts that failed, ever
    last_failure: str = ""
    breaker: Breaker = field(default_factory=Breaker)
    renewed: float = -math.inf  # monotonic
    start_ms: deque[float] = field(default_factory=lambda: deque[float](maxlen=200))
    wake: asyncio.Event = field(default_factory=asyncio.Event)  # probe it now
    destroys: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(DESTROYS))
    starting: Counter[str] = field(default_factory=Counter[str])  # starts under way by image

    # --- slots

    def reserve(self, lease_id: str, generation: int, image: str) -> Slot:
        image = canonical_image(image)
        slot = Slot(
            node=self,
            lease_id=lease_id,
            generation=generation,
            image=image,
            state="starting",
            since=monotonic(),
        )
        self.slots[slot.key] = slot
        self.starting[image] += 1
        return slot

    def read(
        self, info: NodeReply, began: float, *, pool_id: str, settle_s: float
    ) -> tuple[list[Key], dict[Key, str]]:
        """Compare a listing, which was requested at `began` (monotonic), with the slots.

        Returns the slots whose sandboxes certainly do not exist, and the ids of the sandboxes of this pool
        that serve no lease. Listings include sandboxes that are starting. A start without a reply that is
        still missing after `settle_s`, or after a restart of the node, never reached it.
        """
        restarted = self.info is not None and self.info.boot != info.boot
        if restarted:
            self.images.clear()
        self.info = info
        self.images.update(info.images)
        prefix = f"{pool_id}/"
        ours = {
            (row.lease.removeprefix(prefix), row.generation): row.id
            for row in info.sandboxes
            if row.lease.startswith(prefix)
        }
        gone: list[Key] = []
        for key, slot in self.slots.items():
            if key in ours:
                slot.sandbox_id = ours[key]
            elif slot.since < began and slot.state in ("active", "unconfirmed"):
                settled = slot.sandbox_id or restarted or began >= slot.since + settle_s
                if slot.state == "active" or settled:
                    gone.append(key)
        orphans = {
            key: sandbox_id
            for key, sandbox_id in ours.items()
            if (slot := self.slots.get(key)) is None or slot.state == "unconfirmed"
        }
        self.foreign = len(info.sandboxes) - len(ours) + sum(key not in self.slots for key in ours)
        return gone, orphans

    # --- state

    @property
    def capacity(self) -> int:
        own = self.info.capacity if self.info else 0
        return min(self.max_sandboxes, own) if self.max_sandboxes and own else self.max_sandboxes or own

    @property
    def used(self) -> int:
        return len(self.slots) + self.foreign

    @property
    def has_room(self) -> bool:
        return self.used < self.capacity

    @property
    def gate(self) -> int:
        """The number of starts that it may have at a time."""
        return 1 if self.breaker.is_trying else self.start_gate

    @property
    def free_memory_mib(self) -> int:
        return self.info.free_memory_mib if self.info else 0

    def has_image(self, image: str) -> bool:
        """Whether it needs no pull for an image (canonical name)."""
        return image == HOST_IMAGE or image in self.images

    @property
    def state(self) -> Literal["active", "draining", "quarantined", "unreachable"]:
        if self.unreachable:
            return "unreachable"
        if self.draining or (self.info is not None and not self.info.accepting):
            return "draining"
        return "quarantined" if self.breaker.is_open(monotonic()) else "active"

    @property
    def why(self) -> str:
        """Why its state is not `active`, or ""."""
        return {
            "unreachable": self.unreachable,
            "draining": "by request" if self.draining else "it is shutting down",
            "quarantined": self.last_failure,
            "active": "",
        }[self.state]

    def row(self) -> NodeRow:
        starting = self.starting.total()
        return NodeRow(
            url=self.url,
            state=self.state,
            active=len(self.slots) - starting,
            starting=starting,
            capacity=self.capacity,
            free_memory_mib=self.free_memory_mib,
            images=len(self.images),
            start_ms_p50=round(statistics.median(self.start_ms), 1) if self.start_ms else 0.0,
            failures=self.failures,
            why=self.why,
        )


def canonical_image(image: str) -> str:
    """Return the canonical name, as nodes list it; an invalid one is left for the node to refuse."""
    try:
        return canonical(image)
    except ImageUnavailable:
        return image
