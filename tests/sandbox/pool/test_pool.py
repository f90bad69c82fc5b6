"""The pool over simulated nodes: leases are kept, fenced, queued, given back, and never doubled or leaked."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from hone.sandbox.contract import (
    ImageUnavailable,
    LeaseLost,
    ProviderUnavailable,
    QueueTimeout,
    SandboxError,
)
from hone.sandbox.pool.core import Pool
from hone.sandbox.pool.fleet import Timing
from hone.sandbox.pool.store import Store, StoredLease
from hone.sandbox.remote.wire import Beat, CreateRequest, LeaseReply, LeaseRequest, NodeRequest, SpecBody
from tests.sandbox.pool.simulated import FAST, SimulatedNode
from tests.virtual_time import run
from tests.waiting import wait_until_async


def lease_request(
    lease_id: str,
    *,
    run: str = "",
    wait_s: float = 20.0,
    ttl_s: float = 60.0,
    image: str = "host",
    owner: str = "o",
) -> LeaseRequest:
    return LeaseRequest(
        lease_id=lease_id, owner=owner, spec=SpecBody(run=run, image=image), wait_s=wait_s, ttl_s=ttl_s
    )


@asynccontextmanager
async def opened(
    store: Path,
    nodes: Sequence[SimulatedNode],
    *,
    timing: Timing = FAST,
    open_store: Callable[[Path], Store] = Store,
) -> AsyncIterator[Pool]:
    """A pool whose nodes have been probed once."""
    by_url = {f"http://node-{number}": node for number, node in enumerate(nodes)}
    pool = Pool(store, by_url.__getitem__, nodes=list(by_url), timing=timing, open_store=open_store)
    async with pool:
        alive = [url for url, node in by_url.items() if not node.dead]
        await wait_until_async(lambda: all(pool.fleet.get(url).unreachable == "" for url in alive))  # type: ignore[union-attr]
        yield pool


def used(pool: Pool) -> int:
    return sum(len(node.slots) for node in pool.fleet)


def beat(lease: LeaseReply, generation: int | None = None) -> Beat:
    return Beat(lease_id=lease.lease_id, generation=lease.generation if generation is None else generation)


def test_lease_is_granted_renewed_and_closed(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            lease = await pool.allocate(lease_request("a"))
            assert node.leases() == ["a"]
            assert lease.sandbox_id in node.boxes
            assert pool.heartbeat([beat(lease)]) == []
            await pool.close("a", lease.generation)
            assert node.leases() == []
            assert used(pool) == 0
            assert pool.heartbeat([beat(lease)]) == ["a"]
            await pool.close("a")  # again
            assert pool.status().totals["closed"] == 1

    run(main())


def test_same_id_returns_the_same_lease_until_it_ends(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(hold=asyncio.Event())
        async with opened(tmp_path / "s", [node]) as pool:
            both = [asyncio.create_task(pool.allocate(lease_request("a"))) for _ in range(2)]
            await asyncio.sleep(0)
            node.hold.set()  # type: ignore[union-attr]
            first, second = await asyncio.gather(*both)
            third = await pool.allocate(lease_request("a"))
            assert first.sandbox_id == second.sandbox_id == third.sandbox_id
            assert node.created == 1
            with pytest.raises(LeaseLost, match="another owner"):
                await pool.allocate(lease_request("a", owner="thief"))
            await pool.close("a")
            with pytest.raises(LeaseLost, match="closed"):
                await pool.allocate(lease_request("a"))
            assert node.created == 1

    run(main())


def test_lease_closed_before_its_request_stays_closed_after_restart(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.close("a")
            with pytest.raises(LeaseLost):
                await pool.allocate(lease_request("a"))
        async with opened(tmp_path / "s", [node]) as pool:
            with pytest.raises(LeaseLost):
                await pool.allocate(lease_request("a"))
        assert node.created == 0

    run(main())


def test_a_lease_closed_while_it_starts_leaves_no_sandbox(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(hold=asyncio.Event())
        async with opened(tmp_path / "s", [node]) as pool:
            waits = asyncio.create_task(pool.allocate(lease_request("a")))
            await wait_until_async(lambda: used(pool) == 1)
            await pool.close("a")
            with pytest.raises(LeaseLost):
                await waits
            node.hold.set()  # type: ignore[union-attr]
            await wait_until_async(lambda: used(pool) == 0)
            assert node.created == node.destroyed == 1

    run(main())


def test_an_old_generation_is_lost_and_cannot_close(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "s", [SimulatedNode()]) as pool:
            lease = await pool.allocate(lease_request("a"))
            assert pool.heartbeat([beat(lease, lease.generation - 1)]) == ["a"]
            with pytest.raises(LeaseLost):
                await pool.close("a", lease.generation - 1)
            assert pool.heartbeat([beat(lease)]) == []

    run(main())


def test_full_pool_queues_requests_until_their_deadline(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=1)
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("a"))
            with pytest.raises(QueueTimeout) as refused:
                await pool.allocate(lease_request("late", wait_s=0.05))
            assert refused.value.retryable
            waits = asyncio.create_task(pool.allocate(lease_request("b", run="r")))
            await wait_until_async(lambda: pool.status().queued == {"r": 1})
            await pool.close("a")
            assert (await waits).lease_id == "b"
            assert node.most == 1
            assert pool.status().totals["refused"] == 1

    run(main())


def test_runs_take_turns_and_each_is_first_in_first_out(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=1)
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("first"))
            order: list[str] = []

            async def one(lease_id: str, run: str) -> None:
                await pool.allocate(lease_request(lease_id, run=run))
                order.append(lease_id)
                await pool.close(lease_id)

            async with asyncio.TaskGroup() as group:
                for name in ("a1", "a2", "a3", "a4"):
                    group.create_task(one(name, "a"))
                await wait_until_async(lambda: pool.status().queued == {"a": 4})
                for name in ("b1", "b2"):
                    group.create_task(one(name, "b"))
                await wait_until_async(lambda: pool.status().queued.get("b") == 2)
                await pool.close("first")
            assert order == ["a1", "b1", "a2", "b2", "a3", "a4"]

    run(main())


def test_cancelled_request_leaves_the_queue(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path / "s", [SimulatedNode(capacity=1)]) as pool:
            await pool.allocate(lease_request("a"))
            waits = asyncio.create_task(pool.allocate(lease_request("b")))
            await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            waits.cancel()
            await asyncio.wait([waits])
            assert pool.status().queued == {}
            assert len(pool.status().leases) == 1

    run(main())


def test_lease_expires_without_heartbeats_only(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("dead", ttl_s=1.0))
            kept = await pool.allocate(lease_request("kept", ttl_s=1.0))
            while node.leases() != ["kept"]:
                assert pool.heartbeat([beat(kept)]) == []
                await asyncio.sleep(0.05)
            await wait_until_async(lambda: used(pool) == 1)
            assert pool.status().totals["expired"] == 1
            with pytest.raises(LeaseLost, match="expired"):
                await pool.allocate(lease_request("dead"))

    run(main())


def test_running_call_keeps_its_lease_alive(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("a", ttl_s=1.0))
            await pool.allocate(lease_request("b", ttl_s=1.0))
            call = pool.begin_call("a")
            await asyncio.sleep(5)
            await wait_until_async(lambda: node.leases() == ["a"])
            pool.finish_call(call)
            await wait_until_async(lambda: node.leases() == [])

    run(main())


def test_closing_an_owner_ends_all_its_leases(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=2)
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("other", owner="q"))
            await pool.allocate(lease_request("mine"))
            waits = asyncio.create_task(pool.allocate(lease_request("waits")))
            await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            assert await pool.close_owner("o") == 2
            assert node.leases() == ["other"]
            with pytest.raises(LeaseLost):
                await waits

    run(main())


def test_slow_teardown_of_a_lease_runs_once_and_keeps_its_slot(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=1, hold_ends=asyncio.Event())
        timing = replace(FAST, destroy_timeout_s=60.0)
        async with opened(tmp_path / "s", [node], timing=timing) as pool:
            lease = await pool.allocate(lease_request("a", ttl_s=1.0))
            await wait_until_async(lambda: node.ends == 1)  # it has expired
            closes = [asyncio.create_task(pool.close("a", lease.generation)) for _ in range(3)]
            waits = asyncio.create_task(pool.allocate(lease_request("b")))
            await wait_until_async(lambda: sum(pool.status().queued.values()) == 1)
            assert pool.heartbeat([beat(lease)]) == ["a"]
            with pytest.raises(LeaseLost, match="closing"):
                await pool.allocate(lease_request("a"))
            assert not any(task.done() for task in [*closes, waits])
            assert node.hold_ends is not None
            node.hold_ends.set()
            await asyncio.gather(*closes)
            assert (await waits).lease_id == "b"
            assert node.ends == 1
            assert pool.status().totals["expired"] == 1
            assert pool.status().totals["closed"] == 0

    run(main())


@pytest.mark.parametrize("renewal_first", [True, False])
def test_either_renewal_or_expiry_wins(tmp_path: Path, renewal_first: bool) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            lease = await pool.allocate(lease_request("a", ttl_s=1.2))
            await asyncio.sleep(1.25)
            assert pool.look("a").expires_in_s == 0.0  # and the reaper has not looked yet
            if renewal_first:
                assert pool.heartbeat([beat(lease)]) == []
                await asyncio.sleep(1.1)  # the reaper looks twice
                assert pool.heartbeat([beat(lease)]) == []
                assert node.leases() == ["a"]
            else:
                await wait_until_async(lambda: pool.status().totals["expired"] == 1)
                assert pool.heartbeat([beat(lease)]) == ["a"]
                await wait_until_async(lambda: node.leases() == [])

    run(main())


# --- nodes that fail


def test_a_start_that_fails_goes_to_another_node(tmp_path: Path) -> None:
    async def main() -> None:
        broken = SimulatedNode(refuse=ProviderUnavailable("no user namespaces", retryable=False))
        good = SimulatedNode(images=[], capacity=8)
        async with opened(tmp_path / "s", [broken, good]) as pool:
            for number in range(6):
                await pool.allocate(lease_request(f"l{number}"))
            assert len(good.leases()) == 6
            states = {row.url: row for row in pool.status().nodes}
            assert states["http://node-0"].state == "quarantined"
            assert states["http://node-0"].why == "no user namespaces"
            assert used(pool) == 6

    run(main())


def test_error_of_the_last_node_reaches_the_client(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = [
            SimulatedNode(refuse=ProviderUnavailable("out of loop devices", retryable=True)) for _ in range(2)
        ]
        async with opened(tmp_path / "s", nodes) as pool:
            with pytest.raises(ProviderUnavailable, match="loop devices"):
                await pool.allocate(lease_request("a"))
            nodes[1].refuse = None
            assert (await pool.allocate(lease_request("a"))).node_url == "http://node-1"  # the same id again

    run(main())


def test_unknown_image_is_refused_and_counts_against_no_node(tmp_path: Path) -> None:
    async def main() -> None:
        refusal = ImageUnavailable("there is no such image", problem="unknown_image")
        nodes = [SimulatedNode(refuse=refusal) for _ in range(2)]
        async with opened(tmp_path / "s", nodes) as pool:
            for number in range(8):
                with pytest.raises(ImageUnavailable):
                    await pool.allocate(lease_request(f"l{number}", image="docker://nowhere"))
            assert [row.state for row in pool.status().nodes] == ["active", "active"]
            assert used(pool) == 0

    run(main())


@pytest.mark.parametrize(
    "error",
    [OSError(28, "No space left on device"), ValueError("no reply of a node"), SandboxError("internal")],
)
def test_slot_is_released_after_any_error_of_a_node(tmp_path: Path, error: Exception) -> None:
    async def main() -> None:
        node = SimulatedNode(refuse=error)
        async with opened(tmp_path / "s", [node]) as pool:
            with pytest.raises(type(error)):
                await pool.allocate(lease_request("a"))
            assert used(pool) == 0
            assert pool.status().leases == []

    run(main())


def test_start_with_a_lost_reply_is_neither_doubled_nor_leaked(tmp_path: Path) -> None:
    async def main() -> None:
        deaf, good = SimulatedNode(capacity=4), SimulatedNode(capacity=4, images=[])
        deaf.lose_replies = True
        async with opened(tmp_path / "s", [deaf, good]) as pool:
            good.capacity = 3
            leases = [await pool.allocate(lease_request(f"l{number}")) for number in range(3)]
            assert {lease.node_url for lease in leases} == {"http://node-1"}
            deaf.lose_replies = False
            await wait_until_async(lambda: deaf.leases() == [] and used(pool) == 3)

    run(main())


def test_slot_of_start_without_reply_is_kept_until_sandbox_is_gone(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=1, lose_replies=True)
        async with opened(tmp_path / "s", [node]) as pool:
            with pytest.raises(ProviderUnavailable):
                await pool.allocate(lease_request("a"))
            assert used(pool) == 1
            node.lose_replies = False
            assert (await pool.allocate(lease_request("b"))).lease_id == "b"
            assert (node.leases(), node.overbooked) == (["b"], 0)

    run(main())


def test_slot_of_unconfirmed_end_is_released_only_when_certain(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=1)
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("a"))
            node.dead = True
            await pool.close("a")
            assert used(pool) == 1
            waits = asyncio.create_task(pool.allocate(lease_request("b")))
            await wait_until_async(lambda: pool.status().nodes[0].state == "unreachable")
            assert not waits.done()
            node.dead = False
            await waits
            assert node.leases() == ["b"]
            assert node.most == 1

    run(main())


def test_leases_of_a_dead_node_are_lost_and_its_slots_released(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            lease = await pool.allocate(lease_request("a"))
            node.crash()
            await wait_until_async(lambda: pool.status().nodes[0].state == "unreachable")
            assert pool.heartbeat([beat(lease)]) == []  # it may be a cut in the network
            node.restart()
            await wait_until_async(lambda: pool.heartbeat([beat(lease)]) == ["a"])
            assert used(pool) == 0
            await wait_until_async(
                lambda: pool.status().totals["lost"] == 1
            )  # counted once the store holds the end
            await pool.allocate(lease_request("b"))

    run(main())


def test_lease_whose_sandbox_dies_before_the_store_write_is_lost(tmp_path: Path) -> None:
    async def main() -> None:
        written, told = asyncio.Event(), asyncio.Event()

        class Slow(Store):
            async def activate(self, lease: StoredLease) -> None:
                await super().activate(lease)
                written.set()
                await told.wait()

        node = SimulatedNode()
        async with opened(tmp_path / "s", [node], open_store=Slow) as pool:
            waits = asyncio.create_task(pool.allocate(lease_request("a")))
            await written.wait()
            node.crash()
            node.restart()
            await wait_until_async(lambda: used(pool) == 0)
            told.set()
            with pytest.raises(LeaseLost, match="lost"):
                await waits
            await wait_until_async(lambda: pool.status().totals["lost"] == 1)
            assert (pool.status().leases, used(pool)) == ([], 0)
            await pool.allocate(lease_request("b"))
            assert node.leases() == ["b"]

    run(main())


def test_node_that_never_returns_loses_leases_after_its_ttl(tmp_path: Path) -> None:
    async def main() -> None:
        timing = Timing(probe_s=0.1, node_ttl_s=2.0, node_margin_s=0.1, start_timeout_s=5.0)
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node], timing=timing) as pool:
            lease = await pool.allocate(lease_request("a"))
            node.crash()
            await wait_until_async(lambda: pool.heartbeat([beat(lease)]) == ["a"])
            assert used(pool) == 0

    run(main())


def test_pool_renews_sandboxes_beyond_the_ttl_on_the_node(tmp_path: Path) -> None:
    async def main() -> None:
        timing = Timing(probe_s=0.1, node_ttl_s=3.0)
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node], timing=timing) as pool:
            lease = await pool.allocate(lease_request("a"))
            first = node.boxes[lease.sandbox_id].ends
            await wait_until_async(lambda: node.boxes[lease.sandbox_id].ends > first + 4)
            assert pool.heartbeat([beat(lease)]) == []

    run(main())


def test_foreign_sandboxes_are_kept_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode(capacity=2)
        async with opened(tmp_path / "one", [node]) as one, opened(tmp_path / "two", [node]) as two:
            await one.allocate(lease_request("a"))
            await wait_until_async(lambda: next(iter(two.fleet)).foreign == 1)
            await two.allocate(lease_request("a"))
            with pytest.raises(QueueTimeout):
                await two.allocate(lease_request("b", wait_s=0.5))
            assert node.leases() == ["a", "a"]
            assert node.most == 2

    run(main())


# --- nodes come and go


def test_nodes_are_added_drained_and_removed_while_running(tmp_path: Path) -> None:
    async def main() -> None:
        nodes = {"http://a": SimulatedNode(), "http://b": SimulatedNode()}
        async with Pool(tmp_path / "s", nodes.__getitem__, nodes=["http://a"], timing=FAST) as pool:
            first = await pool.allocate(lease_request("first"))
            assert first.node_url == "http://a"
            await pool.put_node(NodeRequest(url="http://b/", max_sandboxes=3))
            await pool.put_node(NodeRequest(url="http://a", state="draining"))
            others = [await pool.allocate(lease_request(f"l{number}")) for number in range(3)]
            assert {lease.node_url for lease in others} == {"http://b"}
            with pytest.raises(QueueTimeout):
                await pool.allocate(lease_request("full", wait_s=0.1))
            with pytest.raises(ValueError, match="drain it first"):
                await pool.remove_node("http://a", force=False)
            await pool.close("first")
            await pool.remove_node("http://a", force=False)
            await pool.remove_node("http://b", force=True)
            assert pool.heartbeat([beat(lease) for lease in others]) == ["l0", "l1", "l2"]
            assert nodes["http://b"].leases() == []
            assert pool.status().nodes == []
            await pool.put_node(NodeRequest(url="http://b", max_sandboxes=5))
        async with Pool(tmp_path / "s", nodes.__getitem__, timing=FAST) as pool:
            assert [(row.url, row.capacity) for row in pool.status().nodes] == [("http://b", 5)]

    run(main())


# --- restarts


def test_no_lease_expires_while_the_pool_stops(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("a", ttl_s=1.0))
            await pool.stop()
            await asyncio.sleep(10)
            assert node.leases() == ["a"]
            with pytest.raises(ProviderUnavailable, match="shutting down"):
                await pool.allocate(lease_request("b"))

    run(main())


def test_leases_survive_a_restart_of_the_pool(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            kept, gone = [await pool.allocate(lease_request(name)) for name in ("kept", "gone")]
        del node.boxes[gone.sandbox_id]
        async with opened(tmp_path / "s", [node]) as pool:
            await wait_until_async(lambda: pool.heartbeat([beat(kept), beat(gone)]) == ["gone"])
            again = await pool.allocate(lease_request("kept"))
            assert (again.generation, again.capability) == (kept.generation, kept.capability)
            new = await pool.allocate(lease_request("new"))
            assert new.generation > kept.generation
            await pool.close("kept", kept.generation)
            assert node.leases() == ["new"]
            totals = pool.status().totals
            assert (totals["allocated"], totals["closed"], totals["lost"]) == (3, 1, 1)

    run(main())


def test_sandboxes_unknown_to_the_store_are_destroyed_after_restart(tmp_path: Path) -> None:
    async def main() -> None:
        node = SimulatedNode()
        async with opened(tmp_path / "s", [node]) as pool:
            await pool.allocate(lease_request("kept"))
            for lease in (f"{pool.id}/unknown", "another-pool/theirs", ""):
                await node.create(CreateRequest(spec=SpecBody(), ttl_s=60.0, lease=lease), key=lease)
        async with opened(tmp_path / "s", [node]) as pool:
            await wait_until_async(lambda: node.leases() == ["", "kept", "theirs"])
            await wait_until_async(lambda: next(iter(pool.fleet)).foreign == 2)

    run(main())


def test_sandbox_starts_where_its_image_is_in_any_notation(tmp_path: Path) -> None:
    async def main() -> None:
        cold, warm = SimulatedNode(), SimulatedNode(images=["host", "docker.io/library/python:latest"])
        async with opened(tmp_path / "s", [cold, warm]) as pool:
            for number, image in enumerate(("python", "docker://python", "docker.io/python:latest")):
                lease = await pool.allocate(lease_request(f"l{number}", image=image))
                assert lease.node_url == "http://node-1", image

    run(main())
