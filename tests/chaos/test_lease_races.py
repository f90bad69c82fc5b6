"""Leases that end while something else happens to them."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.chaos.leftovers import of_sandboxes
from tests.chaos.servers import frozen
from tests.chaos.stack import TTL_S, Stack, stack
from tests.services.process import require
from tests.waiting import let_pass

pytestmark = [pytest.mark.sandbox, pytest.mark.full]


@pytest.fixture(scope="module")
def floor() -> Iterator[Stack]:
    require()
    with stack(max_sandboxes=1, queue_s=60.0) as made:
        yield made


def test_teardown_longer_than_its_lease_keeps_the_slot(floor: Stack) -> None:
    next_one = floor.client("start")
    failures = floor.pool.status().nodes[0].failures
    with contextlib.ExitStack() as killed, floor.caught("close") as (client, resume):
        killed.callback(next_one.kill)
        next_one.call()
        (sandbox,) = floor.node.listed().sandboxes
        let_pass(2 * TTL_S)
        assert sum(floor.pool.status().queued.values()) == 1
        assert [row.id for row in floor.node.listed().sandboxes] == [sandbox.id]
        resume()
        assert client.ended().raised == []
        assert next_one.ended().said == "0"
        assert floor.pool.status().nodes[0].failures == failures  # the place was not tried before
        for one in (client, next_one):
            one.leave()
    floor.assert_healed()


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
