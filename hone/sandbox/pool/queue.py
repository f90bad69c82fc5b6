"""A fair queue: runs take turns; within a run the longest wait goes first.

A request that cannot be placed now (too many starts of its image) lets others of its run pass,
except those of the same image.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from hone.sandbox.pool.leases import Lease


@dataclass(slots=True, eq=False)
class _Run:
    lines: dict[str, dict[int, Lease]] = field(default_factory=dict[str, dict[int, Lease]])
    waiting: int = 0


class FairQueue:
    """Leases that wait for a place. Adding and removing take constant time."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}  # in the order in which they are served
        self._place: dict[str, int] = {}  # lease id -> number in its line
        self._arrived = 0
        self._returned = 0

    def __len__(self) -> int:
        return len(self._place)

    def waiting(self) -> dict[str, int]:
        """Return the number of waiting leases by run."""
        return {name: run.waiting for name, run in self._runs.items()}

    def add(self, lease: Lease) -> None:
        """Add a lease at the end of its line."""
        self._arrived += 1
        self._insert(lease, self._arrived)

    def put_back(self, lease: Lease) -> None:
        """Add a lease, whose node failed, before all others of its run."""
        self._returned -= 1
        run = self._insert(lease, self._returned)
        line = run.lines[lease.spec.image]
        run.lines[lease.spec.image] = dict(sorted(line.items()))

    def _insert(self, lease: Lease, number: int) -> _Run:
        run = self._runs.setdefault(lease.spec.run, _Run())
        run.lines.setdefault(lease.spec.image, {})[number] = lease
        run.waiting += 1
        self._place[lease.id] = number
        return run

    def remove(self, lease: Lease) -> bool:
        """Remove a lease; False when it is not queued."""
        number = self._place.pop(lease.id, None)
        if number is None:
            return False
        run = self._runs[lease.spec.run]
        line = run.lines[lease.spec.image]
        del line[number]
        run.waiting -= 1
        if not line:
            del run.lines[lease.spec.image]
        if not run.waiting:
            del self._runs[lease.spec.run]
        return True

    def serve(self, place: Callable[[Lease], bool]) -> None:
        """Call `place` with run after run's oldest leases until it has refused the head of every line."""
        passed = 0
        while self._runs and passed < len(self._runs):
            name, run = next(iter(self._runs.items()))
            served = next((lease for lease in _heads(run) if place(lease)), None)
            passed = 0 if served else passed + 1
            if served:
                self.remove(served)
            if name in self._runs:
                self._runs[name] = self._runs.pop(name)  # its turn is over


def _heads(run: _Run) -> Iterator[Lease]:
    """Yield the first lease of each line, longest wait first."""
    heads = (next(iter(line.items())) for line in run.lines.values())
    return (lease for _, lease in sorted(heads, key=lambda item: item[0]))
