"""Which lease is served next, and on which node."""

from __future__ import annotations

import itertools
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
    of the same image. Adding and removing take constant time.
    """

    def __init__(self) -> None:
        # run -> image -> lease id -> (number, lease), in the order in which they are served
        self._runs: dict[str, dict[str, dict[str, tuple[int, Lease]]]] = {}
        self._numbers = itertools.count(1)

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting leases by run."""
        return {run: sum(map(len, lines.values())) for run, lines in self._runs.items()}

    def add(self, lease: Lease) -> None:
        """Add a lease at the end of its line."""
        lines = self._runs.setdefault(lease.spec.run, {})
        lines.setdefault(lease.spec.image, {})[lease.id] = next(self._numbers), lease

    def put_back(self, lease: Lease) -> None:
        """Add a lease, whose node failed, before all others of its run."""
        lines = self._runs.setdefault(lease.spec.run, {})
        first = {lease.id: (-next(self._numbers), lease)}
        lines[lease.spec.image] = first | lines.get(lease.spec.image, {})

    def remove(self, lease: Lease) -> None:
        """Remove a lease, if it is queued."""
        lines = self._runs.get(lease.spec.run, {})
        line = lines.get(lease.spec.image, {})
        if line.pop(lease.id, None) is None:
            return
        if not line:
            del lines[lease.spec.image]
        if not lines:
            del self._runs[lease.spec.run]

    def serve(self, place: Callable[[Lease], bool]) -> None:
        """Call `place` with run after run's oldest leases until it has refused the head of every line."""
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
        """Yield the first lease of each line, longest wait first."""
        heads = (next(iter(line.values())) for line in self._runs[run].values())
        return (lease for _, lease in sorted(heads, key=lambda head: head[0]))
