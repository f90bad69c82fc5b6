"""Which lease is served next, and on which node."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from hone.sandbox.pool.leases import Lease
from hone.sandbox.pool.nodes import Node

MEMORY_FLOOR_MIB = 256  # a node with less free memory gets nothing
COLD_LOAD = 0.5  # a node without the image counts as this much fuller than it is
COLD_STARTS = 2  # starts at a time, over all nodes, of an image on nodes that do not have it


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
