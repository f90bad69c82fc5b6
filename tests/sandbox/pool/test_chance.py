"""A pool, its clients and its nodes in any order of events: afterwards every promise holds."""

from __future__ import annotations

import asyncio
import shutil
import tempfile
from collections import Counter
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from hone.sandbox.contract import ProviderUnavailable, SandboxError
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from hone.sandbox.remote.wire import Beat, LeaseReply
from tests.sandbox.pool.simulated import SimulatedNode
from tests.sandbox.pool.test_pool import lease_request
from tests.virtual_time import VirtualTimeLoop
from tests.waiting import wait_until_async

TTL_S = 10.0
CAPACITY = 2
TIMING = Timing(probe_s=0.5, settle_s=1.0, node_ttl_s=600.0, start_timeout_s=5.0, destroy_timeout_s=5.0)
NODES = st.integers(0, 1)


class PoolMachine(RuleBasedStateMachine):
    """Two nodes with room for two sandboxes each, on virtual time."""

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner(loop_factory=VirtualTimeLoop)
        self.folder = Path(tempfile.mkdtemp())
        self.nodes = {f"http://node-{number}": SimulatedNode(capacity=CAPACITY) for number in range(2)}
        self.granted: dict[str, LeaseReply] = {}  # what clients were promised and did not give up
        self.beaten: dict[str, float] = {}
        self.requests: dict[str, asyncio.Task[None]] = {}
        self.closed: set[str] = set()
        self.run(self.open())

    def run(self, work: Coroutine[Any, Any, None]) -> None:
        self.runner.run(work)

    @property
    def now(self) -> float:
        return self.runner.get_loop().time()

    async def open(self) -> None:
        self.pool = Pool(
            self.folder / "s",
            self.nodes.__getitem__,
            nodes=list(self.nodes),
            timing=TIMING,
        )
        await self.pool.__aenter__()

    async def _ask(self, name: str) -> None:
        try:
            reply = await self.pool.allocate(lease_request(name, ttl_s=TTL_S, wait_s=60.0))
        except SandboxError:
            return
        assert name not in self.closed, "a closed lease came back"
        if name in self.granted:
            assert self.granted[name].sandbox_id == reply.sandbox_id
        self.granted[name] = reply
        self.beaten[name] = self.now

    async def breathe(self) -> None:
        await asyncio.sleep(0.01)

    # --- clients

    @rule(count=st.integers(1, 4))
    def ask(self, count: int) -> None:
        async def go() -> None:
            for _ in range(count):
                name = f"l{len(self.requests)}"
                self.requests[name] = asyncio.create_task(self._ask(name))
            await self.breathe()

        self.run(go())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def ask_again(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))

        async def go() -> None:
            if self.requests[name].done():
                self.requests[name] = asyncio.create_task(self._ask(name))
            await self.breathe()

        self.run(go())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def leave(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))

        async def go() -> None:
            self.requests[name].cancel()
            await self.breathe()

        self.run(go())

    @precondition(lambda self: self.requests)
    @rule(data=st.data())
    def close(self, data: st.DataObject) -> None:
        name = data.draw(st.sampled_from(sorted(self.requests)))

        async def go() -> None:
            self.closed.add(name)
            self.granted.pop(name, None)
            await self.pool.close(name)

        self.run(go())

    @rule()
    def heartbeat(self) -> None:
        self.run(self.renew())

    async def renew(self) -> None:
        beats = [Beat(lease_id=name, generation=reply.generation) for name, reply in self.granted.items()]
        for name in self.pool.heartbeat(beats):
            assert not self.is_well(name), f"{name} was reported lost for no reason"
            del self.granted[name]
        for name in self.granted:
            self.beaten[name] = self.now

    def is_well(self, name: str) -> bool:
        """Its sandbox is there, and its client has renewed it in time."""
        reply = self.granted[name]
        boxes = self.nodes[reply.node_url].boxes
        return reply.sandbox_id in boxes and self.now - self.beaten[name] < TTL_S

    @rule(steps=st.integers(1, 6))
    def pass_time(self, steps: int) -> None:
        async def go() -> None:
            await asyncio.sleep(1.9 * steps)

        self.run(go())

    # --- nodes

    @rule(number=NODES, what=st.sampled_from(["crash", "restart", "broken", "cut", "well"]))
    def change_node(self, number: int, what: str) -> None:
        self.run(self.change(number, what))

    @rule(number=NODES, count=st.integers(1, 3))
    def lose_the_replies_to_starts(self, number: int, count: int) -> None:
        self.run(self.change(number, "deaf"))
        self.ask(count)

    async def change(self, number: int, what: str) -> None:
        node = list(self.nodes.values())[number]
        if what in ("crash", "restart"):
            getattr(node, what)()
        node.lose_replies = what == "deaf"
        node.refuse = ProviderUnavailable("broken", retryable=True) if what == "broken" else None
        node.dead = what in ("crash", "cut")
        await self.breathe()

    @rule()
    def restart_pool(self) -> None:
        async def go() -> None:
            await self.pool.__aexit__()
            await asyncio.gather(*self.requests.values(), return_exceptions=True)
            await self.open()
            for name, beaten in self.beaten.items():
                if self.now - beaten < TTL_S:  # a live lease gets its full time again
                    self.beaten[name] = self.now

        for task in self.requests.values():
            task.cancel()
        self.run(go())

    # --- what holds

    @invariant()
    def no_node_has_more_than_it_may(self) -> None:
        assert not any(node.overbooked for node in self.nodes.values())

    @invariant()
    def no_placement_has_two_sandboxes(self) -> None:
        placements = Counter(
            (box.request.lease, box.request.generation)
            for node in self.nodes.values()
            for box in node.boxes.values()
        )
        assert all(number == 1 for number in placements.values())

    def teardown(self) -> None:
        try:
            self.run(self.heal())
        finally:
            self.run(self.pool.__aexit__())
            self.runner.close()
            shutil.rmtree(self.folder)

    async def heal(self) -> None:
        """When all nodes answer again, there is one sandbox for each lease that lives, and none beside."""
        for task in self.requests.values():
            task.cancel()
        await asyncio.gather(*self.requests.values(), return_exceptions=True)
        for node in self.nodes.values():
            node.dead = node.lose_replies = False
            node.refuse = None

        def settled() -> bool:
            rows = self.pool.status().leases
            active = sorted(row.lease_id for row in rows if row.state == "active")
            boxes = sorted(name for node in self.nodes.values() for name in node.leases())
            slots = sum(len(node.slots) for node in self.pool.fleet)
            return len(rows) == len(active) == slots and active == boxes

        await wait_until_async(settled, "leases, places and sandboxes do not agree")
        await self.renew()
        for reply in self.granted.values():
            assert reply.sandbox_id in self.nodes[reply.node_url].boxes
        await self.pool.close_owner("o")
        await wait_until_async(
            lambda: not any(node.boxes for node in self.nodes.values()), "sandboxes are left"
        )
        assert not any(node.slots for node in self.pool.fleet)
        totals = self.pool.status().totals
        assert totals["allocated"] == totals["closed"] + totals["expired"] + totals["lost"]


PoolMachine.TestCase.settings = settings(stateful_step_count=40)
TestPool = PoolMachine.TestCase
