"""kill -9 of the pool at every durable step: after a restart nothing is lost, doubled or leaked."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sqlite3
import sys
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from hone.sandbox import LeaseLost, SandboxError
from hone.sandbox.client.api import PoolClient
from hone.sandbox.remote.wire import Beat, CreateReply, LeaseReply, LeaseRequest, SpecBody
from hone.utils import http_server
from tests.sandbox.pool.simulated import SimulatedNode, listening, node_app, serving_pool
from tests.waiting import wait_until_async

IDS = ("a", "b", "c")


class Client:
    """Does its leases' whole life, and writes down what it was promised."""

    def __init__(self, pool: PoolClient) -> None:
        self.pool = pool
        self.granted: dict[str, LeaseReply] = {}
        self.closing: set[str] = set()
        self.closed: set[str] = set()

    async def live(self) -> None:
        """One after the other, so that every one has transactions of its own; "a" stays open."""
        for lease_id in IDS:
            await self.lease(lease_id)
        for lease_id in IDS[1:]:
            self.closing.add(lease_id)
            await self.pool.close(lease_id)
            self.closed.add(lease_id)

    async def lease(self, lease_id: str) -> LeaseReply:
        lease = LeaseRequest(lease_id=lease_id, owner="o", spec=SpecBody(), wait_s=20.0)
        reply = self.granted[lease_id] = await self.pool.allocate(lease)
        return reply


@contextlib.asynccontextmanager
async def dying_pool(
    store: Path, node_url: str, listener: socket.socket, step: int, moment: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    number = listener.fileno()
    arguments = ["-m", "tests.sandbox.pool.dying", str(store), node_url, str(number), str(step), moment]
    process = await asyncio.create_subprocess_exec(
        sys.executable, *arguments, stdout=asyncio.subprocess.PIPE, pass_fds=[number]
    )
    assert process.stdout is not None
    try:
        assert await process.stdout.readline()
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


KILLS = [(step, moment) for step in range(1, 6) for moment in ("before", "after")]  # three begin, two end
FEW_KILLS = [(1, "before"), (3, "after"), (4, "before"), (5, "after")]


@pytest.mark.parametrize(
    ("step", "moment"),
    [pytest.param(*kill, marks=[] if kill in FEW_KILLS else pytest.mark.full) for kill in KILLS],
)
def test_pool_killed_at_a_transaction_loses_and_leaks_nothing(tmp_path: Path, step: int, moment: str) -> None:
    async def run() -> None:
        node, listener, store = SimulatedNode(), http_server.listen("127.0.0.1", 0), tmp_path / "s"
        async with listening(node_app(node)) as node_url, aiohttp.ClientSession() as session:
            client = Client(PoolClient(session, http_server.address(listener), "t"))
            async with dying_pool(store, node_url, listener, step, moment) as process:
                life = asyncio.create_task(client.live())
                assert await asyncio.wait_for(process.wait(), 60) == -9
            promised = dict(client.granted)
            async with serving_pool(store, [node_url], listener=listener) as (_, pool):
                with contextlib.suppress(LeaseLost):  # its request came back after its lease had ended
                    await asyncio.wait_for(life, 60)
                for lease_id, granted in promised.items():
                    beat = Beat(lease_id=lease_id, generation=granted.generation)
                    if lease_id not in client.closing:
                        assert pool.heartbeat([beat]) == [], "a promised lease is lost"
                        assert (await client.lease(lease_id)).sandbox_id == granted.sandbox_id
                for lease_id in client.closed:
                    with pytest.raises(LeaseLost):
                        await client.lease(lease_id)
                await wait_until_async(lambda: max(Counter(node.leases()).values(), default=0) <= 1)
                await wait_until_async(lambda: node.leases() == ["a"])
                await wait_until_async(lambda: sum(len(row.slots) for row in pool.fleet) == 1)
                assert pool.status().totals["allocated"] - pool.status().totals["closed"] == 1
        listener.close()

    asyncio.run(run())


def test_full_store_refuses_leases_and_leaves_no_sandbox(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    connections: list[sqlite3.Connection] = []
    connect = sqlite3.connect

    def noted_connect(*arguments: Any, **options: Any) -> sqlite3.Connection:
        connections.append(connect(*arguments, **options))
        return connections[-1]

    monkeypatch.setattr(sqlite3, "connect", noted_connect)

    async def run() -> None:
        node = SimulatedNode(capacity=100)
        async with (
            listening(node_app(node)) as node_url,
            serving_pool(tmp_path / "s", [node_url]) as (url, pool),
        ):
            await wait_until_async(lambda: not pool.unhealthy())
            async with aiohttp.ClientSession() as session:
                client = Client(PoolClient(session, url, "t"))
                await client.lease("kept")
                (store,) = connections
                limit = store.execute("PRAGMA page_count").fetchone()[0] + 1
                store.execute(f"PRAGMA max_page_count = {limit}")
                many = (client.lease(f"l{number}") for number in range(50))
                replies = await asyncio.gather(*many, return_exceptions=True)
                refused = [reply for reply in replies if isinstance(reply, BaseException)]
                assert refused
                assert all("store cannot be written" in str(error) for error in refused)
                await wait_until_async(lambda: len(node.leases()) == 51 - len(refused))
                store.execute("PRAGMA max_page_count = 1000000")
                await client.lease("again")
                await client.pool.close_owner("o")
                assert node.leases() == []

    asyncio.run(run())


@pytest.mark.full
def test_store_does_not_grow_with_ended_leases(tmp_path: Path) -> None:
    from hone.sandbox.pool.store import Store, StoredLease

    grant = CreateReply(id="box", capability="c" * 300, workdir="", enforced={}).model_dump_json()

    def row(number: int) -> StoredLease:
        return StoredLease(
            id=f"lease-{number}",
            generation=number,
            owner="o",
            spec="{}",  # type: ignore[arg-type]
            ttl_s=1,
            created=0,
            node_url="http://n",
            grant=grant,  # type: ignore[arg-type]
        )

    def size() -> int:
        return sum(path.stat().st_size for path in tmp_path.iterdir())

    async def come_and_go(turns: range) -> int:
        """The pages of the store's file after that many turns."""
        store = Store(tmp_path / "s")
        await store.open()
        for turn in turns:
            rows = [row(turn * 2000 + number) for number in range(2000)]
            await asyncio.gather(*(store.activate(one) for one in rows))
            await asyncio.gather(*(store.end(one.id, "closed", counted=True) for one in rows))
            await store.prune([one.id for one in rows])
            assert size() < 16 << 20  # its journal with it
        await store.close()
        with contextlib.closing(sqlite3.connect(tmp_path / "s")) as connection:
            assert connection.execute("SELECT count(*) FROM tombstones").fetchone() == (0,)
            return connection.execute("PRAGMA page_count").fetchone()[0]

    async def run() -> None:
        early = await come_and_go(range(2))
        assert await come_and_go(range(2, 9)) <= early

    asyncio.run(run())


def test_two_pools_cannot_use_one_store(tmp_path: Path) -> None:
    async def run() -> None:
        async with serving_pool(tmp_path / "s", []):
            with pytest.raises(SandboxError, match="locked"):
                async with serving_pool(tmp_path / "s", []):
                    raise AssertionError

    asyncio.run(run())


def test_invalid_store_file_is_refused_in_one_sentence(tmp_path: Path) -> None:
    async def run() -> None:
        (tmp_path / "s").write_bytes(b"not a database at all, however long it may be" * 100)
        with pytest.raises(SandboxError, match="cannot be opened: file is not a database"):
            async with serving_pool(tmp_path / "s", []):
                raise AssertionError

    asyncio.run(run())
