"""Leases over simulated nodes that die, lose replies and slow down, and for clients that die."""

from __future__ import annotations

import asyncio
import random
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from hone.sandbox.contract import ProviderUnavailable, SandboxError
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from hone.sandbox.remote.wire import Beat, LeaseReply, LeaseRequest, SpecBody
from tests.sandbox.pool.simulated import SimulatedNode

NODES, CAPACITY, CLIENTS = 8, 32, 300
TTL_S = 1.0
TIMING = Timing(
    probe_s=0.25,
    probe_timeout_s=1.0,
    start_timeout_s=5.0,
    settle_s=1.0,
    destroy_timeout_s=2.0,
    node_ttl_s=20.0,
    node_margin_s=1.0,
)


KINDS = ("crash", "cut", "deaf", "slow", "broken")
_HEALED_S = 60.0


@dataclass(slots=True)
class Outcome:
    """Of `leases` requests; the last three must be 0."""

    granted: int = 0
    refused: int = 0  # ended in a typed error instead
    clients_died: int = 0
    nodes_died: int = 0  # with the leases on them
    lost: int = 0  # although client and node lived
    doubled: int = 0  # two sandboxes for one placement, or a sandbox for two leases
    leaked: int = 0  # sandboxes, places and leases that are left when all clients have gone
    seconds: float = 0.0


class Storm:
    def __init__(self, store: Path, leases: int, seed: int) -> None:
        self._random = random.Random(seed)
        self._nodes = {
            f"http://node-{number}": SimulatedNode(capacity=CAPACITY, start_s=0.01) for number in range(NODES)
        }
        self._store = store
        self._left = iter(range(leases))
        self._served: set[str] = set()  # sandboxes that were granted
        self.outcome = Outcome()

    async def run(self) -> Outcome:
        began = time.monotonic()
        urls = list(self._nodes)
        async with Pool(self._store, self._nodes.__getitem__, nodes=urls, timing=TIMING) as self._pool:
            faults = asyncio.create_task(self._inject_faults())
            async with asyncio.TaskGroup() as group:
                for _ in range(CLIENTS):
                    group.create_task(self._client())
            faults.cancel()
            await asyncio.wait([faults])
            self.outcome.leaked = await self._left_when_healed()
        self.outcome.seconds = round(time.monotonic() - began, 1)
        return self.outcome

    # --- clients

    async def _client(self) -> None:
        for number in self._left:
            spec = SpecBody(run=f"run-{number % 4}")
            asked = LeaseRequest(lease_id=f"l{number}", owner="o", spec=spec, ttl_s=TTL_S, wait_s=120.0)
            before = {url: node.crashes for url, node in self._nodes.items()}
            try:
                lease = await self._pool.allocate(asked)
            except SandboxError:
                self.outcome.refused += 1
            else:
                self.outcome.granted += 1
                await self._hold(lease, before[lease.node_url])

    async def _hold(self, lease: LeaseReply, crashes: int) -> None:
        """Live with a lease for a moment; some clients die meanwhile."""
        self.outcome.doubled += lease.sandbox_id in self._served
        self._served.add(lease.sandbox_id)
        node = self._nodes[lease.node_url]
        beat = Beat(lease_id=lease.lease_id, generation=lease.generation)
        for _ in range(self._random.choice((1, 2, 3))):
            renewed = not self._pool.heartbeat([beat])
            if not renewed or lease.sandbox_id not in node.boxes:
                self.outcome.lost += node.crashes == crashes
                return
            await asyncio.sleep(self._random.uniform(0.0, 0.1))
        if self._random.random() < 0.03:
            self.outcome.clients_died += 1
        else:
            await self._pool.close(lease.lease_id, lease.generation)

    # --- nodes

    async def _inject_faults(self) -> None:
        """Every moment something happens to a node, which is well again after a while."""
        async with asyncio.TaskGroup() as group:
            while True:
                await asyncio.sleep(self._random.uniform(0.02, 0.2))
                node = self._random.choice(list(self._nodes.values()))
                group.create_task(self._befall(node, self._random.choice(KINDS)))
                self._count_doubles()

    async def _befall(self, node: SimulatedNode, kind: str) -> None:
        if kind == "crash":
            self.outcome.nodes_died += 1
            node.crash()
        node.dead |= kind == "cut"
        node.lose_replies |= kind == "deaf"
        node.start_s = 0.5 if kind == "slow" else node.start_s
        node.refuse = ProviderUnavailable("broken", retryable=True) if kind == "broken" else node.refuse
        await asyncio.sleep(self._random.uniform(0.2, 2.0))
        if kind == "crash":
            node.restart()
        _repair(node)

    def _count_doubles(self) -> None:
        boxes = [box.request for node in self._nodes.values() for box in node.boxes.values()]
        placements = Counter((request.lease, request.generation) for request in boxes)
        self.outcome.doubled += sum(number - 1 for number in placements.values())

    async def _left_when_healed(self) -> int:
        """Return the leases left once all nodes are healthy and no client has renewed for long."""
        for node in self._nodes.values():
            _repair(node)
        deadline = time.monotonic() + _HEALED_S
        while (left := self._count_left()) and time.monotonic() < deadline:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return left

    def _count_left(self) -> int:
        boxes = sum(len(node.living()) for node in self._nodes.values())
        places = sum(len(node.slots) for node in self._pool.fleet)
        return boxes + places + len(self._pool.status().leases)


def _repair(node: SimulatedNode) -> None:
    node.dead = node.lose_replies = False
    node.start_s, node.refuse = 0.01, None
