"""All nodes of a pool: slots, starts, teardowns, and a reconciliation loop for each node.

The loop lists the sandboxes of its node every few seconds: leases whose sandbox is gone are lost, sandboxes
without a lease are destroyed, and the others are renewed. Restarts of the pool or a node need nothing else.
Sandboxes of other pools are never touched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from hone.sandbox.client.api import Unreachable
from hone.sandbox.contract import ImageUnavailable, ProviderUnavailable, SandboxError, SandboxLost
from hone.sandbox.pool.nodes import Key, Node, NodeApi, Slot, canonical_image
from hone.sandbox.remote.wire import CreateReply, CreateRequest, NodeRequest, SpecBody
from hone.utils.clock import monotonic
from hone.utils.concurrency import cancel_all

_log = logging.getLogger(__name__)
MEMORY_FLOOR_MIB = 256  # a node with less free memory gets nothing
COLD_LOAD = 0.5  # a node without the image counts as this much fuller than it is
COLD_STARTS = 2  # starts at a time, over all nodes, of an image on nodes that do not have it
_MISSES = 2  # consecutive failed probes after which a node gets no more leases
# Raised by calls to a node: its own error, an invalid reply, a timeout (an OSError).
_NODE_ERRORS = (SandboxError, ValueError, OSError)


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """Seconds."""

    probe_s: float = 5.0  # between two probes of a node
    probe_timeout_s: float = 5.0
    start_timeout_s: float = 720.0  # of one start, image pull included
    settle_s: float = 30.0  # after which an unlisted start without a reply has certainly not reached the node
    destroy_timeout_s: float = 45.0
    node_ttl_s: float = 180.0  # time to live on the node without renewal
    node_margin_s: float = 15.0  # added to it before a sandbox counts as gone


class Fleet:
    """The nodes of one pool."""

    def __init__(
        self,
        connect: Callable[[str], NodeApi],
        *,
        pool_id: str,
        timing: Timing,
        on_lost: Callable[[str, int], None],
        on_room: Callable[[], None],
    ) -> None:
        """`on_lost` gets id and generation of each active lease whose sandbox is gone; `on_room` is called
        when there may be room for more."""
        self._connect = connect
        self._pool_id = pool_id
        self._timing = timing
        self._on_lost, self._on_room = on_lost, on_room
        self._gone_s = timing.node_ttl_s + timing.node_margin_s
        self._nodes: dict[str, Node] = {}
        self._supervisors: dict[str, asyncio.Task[None]] = {}

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes.values())

    def get(self, url: str) -> Node | None:
        return self._nodes.get(url)

    # --- nodes come and go

    def put(self, request: NodeRequest) -> Node:
        """Add a node, or change how one is used."""
        url = request.url
        node = self._nodes.get(url)
        if node is None:
            node = self._nodes[url] = Node(url=url, api=self._connect(url))
            task = self._supervisors[url] = asyncio.create_task(self._supervise(node))
            task.add_done_callback(_report)
        node.max_sandboxes, node.draining = request.max_sandboxes, request.state == "draining"
        node.wake.set()
        return node

    async def remove(self, url: str) -> None:
        """Forget a node, whose leases have ended."""
        await cancel_all([self._supervisors.pop(url)])
        del self._nodes[url]

    async def close(self) -> None:
        await cancel_all(self._supervisors.values())

    # --- places

    def has_room(self) -> bool:
        return any(node.state == "active" and node.has_room for node in self)

    def choose(self, spec: SpecBody, *, avoid: set[str]) -> Node | None:
        nodes = [node for node in self if node.state == "active" and node.url not in avoid]
        return choose(nodes, canonical_image(spec.image), memory_mib=spec.limits.memory_mib)

    def can_try(self, avoid: set[str]) -> bool:
        """Whether any other node could serve, now or once it has room."""
        return any(url not in avoid and not node.draining for url, node in self._nodes.items())

    def adopt(self, node: Node, lease_id: str, generation: int, image: str, sandbox_id: str) -> Slot:
        """Return the slot of a lease that an earlier run of the pool left active."""
        slot = node.reserve(lease_id, generation, image)
        slot.settle("active")
        slot.since = float("-inf")
        slot.sandbox_id = sandbox_id
        slot.alive_until = monotonic() + self._gone_s
        return slot

    # --- starts and teardowns

    async def start(self, slot: Slot, spec: SpecBody) -> CreateReply:
        """Start the sandbox of a slot. When it raises, the slot is released or unconfirmed."""
        node = slot.node
        request = CreateRequest(
            spec=spec,
            ttl_s=self._timing.node_ttl_s,
            lease=f"{self._pool_id}/{slot.lease_id}",
            generation=slot.generation,
        )
        began = monotonic()
        try:
            async with asyncio.timeout(self._timing.start_timeout_s):
                key = f"{self._pool_id}/{slot.generation}"  # generations are unique
                reply = await node.api.create(request, key=key)
        except (Unreachable, TimeoutError) as error:
            self._record_failure(node, error)
            slot.settle("unconfirmed")
            slot.alive_until = slot.since + self._timing.start_timeout_s + self._gone_s
            node.wake.set()
            raise Unreachable(f"{node.url} did not say whether the sandbox started") from error
        except _NODE_ERRORS as error:
            if isinstance(error, ProviderUnavailable) and not isinstance(error, ImageUnavailable):
                self._record_failure(node, error)
            slot.release()
            raise
        slot.settle("active")
        slot.sandbox_id = reply.id
        slot.alive_until = slot.since + self._gone_s
        node.start_ms.append((slot.since - began) * 1e3)
        node.images.add(slot.image)
        node.breaker.succeeded()
        return reply

    def _record_failure(self, node: Node, error: Exception) -> None:
        node.failures += 1
        node.last_failure = str(error) or type(error).__name__
        node.breaker.failed(monotonic())
        _log.warning("a start on %s failed: %s", node.url, node.last_failure)

    async def tear_down(self, slot: Slot) -> None:
        """Destroy the sandbox of a slot; when the node does not confirm, the slot becomes unconfirmed.

        The slot is `closing` meanwhile, so the reconciliation leaves it alone.
        """
        slot.settle("closing")
        if await self._destroy(slot.node, slot.sandbox_id):
            slot.release()
        else:
            slot.settle("unconfirmed")
            slot.node.wake.set()

    async def _destroy(self, node: Node, sandbox_id: str) -> bool:
        try:
            async with node.destroys, asyncio.timeout(self._timing.destroy_timeout_s):
                await node.api.destroy(sandbox_id)
        except SandboxLost:
            return True
        except _NODE_ERRORS as error:
            _log.warning("%s did not confirm the end of sandbox %s: %s", node.url, sandbox_id, error)
            return False
        return True

    # --- supervision

    async def _supervise(self, node: Node) -> None:
        while True:
            node.wake.clear()
            await self._probe(node)
            self._on_room()
            pause = self._timing.probe_s / 5 if node.missed == 1 else self._timing.probe_s
            await asyncio.sleep(pause / 25)  # at least, however often the event is set
            try:
                async with asyncio.timeout(pause):
                    await node.wake.wait()
            except TimeoutError:
                continue

    async def _probe(self, node: Node) -> None:
        began = monotonic()
        try:
            async with asyncio.timeout(self._timing.probe_timeout_s):
                info = await node.api.info()
        except _NODE_ERRORS as error:
            node.missed += 1
            if node.missed >= _MISSES or node.info is None:
                node.unreachable = str(error) or "it did not answer in time"
            self._give_up_old(node)
            return
        node.missed = 0
        gone, orphans = node.read(info, began, pool_id=self._pool_id, settle_s=self._timing.settle_s)
        for key in gone:
            self._gone(node, key)
        node.unreachable = ""  # orphans count as used until they are destroyed
        await self._renew(node)
        await self._destroy_orphans(node, orphans)

    def _gone(self, node: Node, key: Key) -> None:
        """Release a slot whose sandbox certainly does not exist."""
        slot = node.slots[key]
        was_active = slot.state == "active"
        slot.release()
        if was_active:
            self._on_lost(*key)

    def _give_up_old(self, node: Node) -> None:
        """Release slots of an unreachable node whose sandboxes have expired there."""
        now = monotonic()
        for key, slot in list(node.slots.items()):
            if slot.state in ("active", "unconfirmed") and now >= slot.alive_until:
                self._gone(node, key)

    async def _destroy_orphans(self, node: Node, orphans: dict[Key, str]) -> None:
        async def destroy(key: Key, sandbox_id: str) -> None:
            confirmed = await self._destroy(node, sandbox_id)
            slot = node.slots.get(key)
            if confirmed and slot is not None and slot.state == "unconfirmed":
                slot.release()
            elif confirmed and slot is None:
                node.foreign = max(0, node.foreign - 1)

        await asyncio.gather(*(destroy(key, sandbox_id) for key, sandbox_id in orphans.items()))

    async def _renew(self, node: Node) -> None:
        """Renew active sandboxes, four times within the node's time to live."""
        if monotonic() < node.renewed + self._timing.node_ttl_s / 4:
            return
        active = [slot for slot in node.slots.values() if slot.state == "active"]
        try:
            async with asyncio.timeout(self._timing.probe_timeout_s):
                ids = [slot.sandbox_id for slot in active]
                lost = set(await node.api.renew(ids, self._timing.node_ttl_s))
        except _NODE_ERRORS as error:
            _log.warning("%s did not renew its sandboxes: %s", node.url, error)
            return
        for slot in active:
            if slot.state == "active" and slot.sandbox_id in lost:
                self._gone(node, slot.key)
            slot.alive_until = monotonic() + self._gone_s
        node.renewed = monotonic()


def _report(supervisor: asyncio.Task[None]) -> None:
    """Log a supervisor that ended for any other reason than the removal of its node."""
    if not supervisor.cancelled():
        _log.critical("the supervision of a node has ended", exc_info=supervisor.exception())


def choose(nodes: Iterable[Node], image: str, *, memory_mib: int) -> Node | None:
    """Return the best node for a sandbox, or None when the request has to wait.

    A node is eligible below its capacity and its start gate. One that lacks the image gets one start of it at
    a time (which pulls it), and only COLD_STARTS nodes do so at once: the others of this image wait for them.
    Of the eligible ones, those with `memory_mib` free come first, then the least loaded.
    """
    candidates = list(nodes)
    cold_starts = sum(node.starting[image] for node in candidates if not node.has_image(image))

    def is_eligible(node: Node) -> bool:
        if not node.has_room or node.starting.total() >= node.gate or node.free_memory_mib < MEMORY_FLOOR_MIB:
            return False
        return node.has_image(image) or (not node.starting[image] and cold_starts < COLD_STARTS)

    def rank(node: Node) -> tuple[bool, float, int]:
        load = node.used / node.capacity + (0.0 if node.has_image(image) else COLD_LOAD)
        return node.free_memory_mib < memory_mib, load, -node.free_memory_mib

    return min(filter(is_eligible, candidates), key=rank, default=None)
