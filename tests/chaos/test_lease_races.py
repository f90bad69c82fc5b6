"""Leases that end while something else happens to them."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Iterator

import aiohttp
import pytest

from hone.sandbox import LeaseLost, SandboxLost, SandboxSpec
from hone.sandbox.client.pool import PoolClient
from hone.sandbox.client.sandbox import RemoteSandbox
from hone.sandbox.remote.wire import Beat, LeaseReply, LeaseRequest, SpecBody
from tests.chaos.leftovers import of_sandboxes
from tests.chaos.servers import TOKEN, frozen, until
from tests.chaos.stack import TTL_S, Stack, stack
from tests.services.process import require

pytestmark = pytest.mark.sandbox

SHORTEST_S = 1.0  # time to live


@pytest.fixture(scope="module")
def floor() -> Iterator[Stack]:
    require()
    with stack(max_sandboxes=1, queue_s=60.0) as made:
        yield made


def test_a_teardown_that_outlasts_its_lease_keeps_the_place_until_it_has_ended(floor: Stack) -> None:
    next_one = floor.client("start")
    failures = floor.pool.status().nodes[0].failures
    with contextlib.ExitStack() as killed, floor.caught("close") as (client, resume):
        killed.callback(next_one.kill)
        next_one.call()
        (sandbox,) = floor.node.listed().sandboxes
        passed = time.monotonic() + 2 * TTL_S
        until(lambda: time.monotonic() > passed, floor.log)
        assert sum(floor.pool.status().queued.values()) == 1
        assert [row.id for row in floor.node.listed().sandboxes] == [sandbox.id]
        resume()
        assert client.ended().raised == []
        assert next_one.ended().said == "0"
        assert floor.pool.status().nodes[0].failures == failures  # the place was not tried before
        for one in (client, next_one):
            one.leave()
    floor.assert_healed()


def test_a_renewal_that_races_the_expiry_is_either_kept_or_refused(floor: Stack) -> None:
    outcomes: Counter[str] = Counter()

    async def race(session: aiohttp.ClientSession, pool: PoolClient, late_s: float) -> str:
        """Renew a lease about when it expires; what the pool answers must then be true."""
        asked = LeaseRequest(
            lease_id=f"race-{secrets.token_hex(8)}",
            owner="racer",
            spec=SpecBody(),
            ttl_s=SHORTEST_S,
            wait_s=60.0,
        )
        lease = await pool.allocate(asked)
        sandbox = _sandbox(session, lease)
        await asyncio.sleep(SHORTEST_S + late_s)
        asked_at = time.monotonic()
        lost = await pool.heartbeat([Beat(lease_id=lease.lease_id, generation=lease.generation)])
        try:
            assert (await sandbox.exec("true")).exit_code == 0
        except SandboxLost:
            # within its new time a lease that was renewed lives
            assert lost or time.monotonic() - asked_at > SHORTEST_S
        if lost:
            with pytest.raises(LeaseLost):  # and one that was refused never comes back
                await pool.allocate(asked)
        await pool.close(lease.lease_id)
        return "refused" if lost else "kept"

    async def run() -> None:
        deadline = time.monotonic() + 240
        async with aiohttp.ClientSession() as session:
            pool = PoolClient(session, floor.pool.url, TOKEN)
            late_s = 0.25
            while sum(outcomes.values()) < 8 or len(outcomes) < 2:
                assert time.monotonic() < deadline, outcomes
                outcome = await race(session, pool, late_s)
                outcomes[outcome] += 1
                late_s += -0.06 if outcome == "refused" else 0.06  # back to where it is decided

    asyncio.run(run())
    floor.assert_healed()


def _sandbox(session: aiohttp.ClientSession, lease: LeaseReply) -> RemoteSandbox:
    async def leave() -> None: ...

    return RemoteSandbox(
        session,
        node_url=lease.node_url,
        sandbox_id=lease.sandbox_id,
        capability=lease.capability,
        spec=SandboxSpec(workdir=lease.workdir),
        enforced=lease.enforced,
        on_close=leave,
    )


def test_a_reaper_that_meets_a_live_owner_touches_nothing_of_it(floor: Stack) -> None:
    """Other nodes, pools and clients of the same machine begin by cleaning up after dead ones."""
    with floor.caught("exec") as (client, _), contextlib.ExitStack() as others:
        before = set(of_sandboxes(floor.node.pid))
        node = floor.node.beside()
        others.callback(node.stop)
        with frozen([floor.node.pid]):  # an owner that stands still is no dead one
            node.start()
        pool = floor.pool.beside(store=str(floor.folder / "store" / "other.sqlite"))
        others.callback(pool.stop)
        pool.start()
        floor.client("start").kill()
        assert set(of_sandboxes(floor.node.pid)) >= before != set()
        assert len(floor.node.listed().sandboxes) == len(floor.pool.status().leases) == 1
        client.finish_commands()
        assert client.ended().said == "137"
        client.leave()
    floor.assert_healed()
