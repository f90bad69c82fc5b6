"""A network that is cut between hosts, and healed."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from tests.chaos.networks import Cable, cable
from tests.chaos.stack import CALLS, UPLOAD_BYTES, stack
from tests.services.process import require
from tests.waiting import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.full]


@pytest.fixture
def joined() -> Iterator[Cable]:
    require("ip", "nsenter")
    with cable() as made:
        yield made


def test_a_node_that_is_cut_off_for_a_while_loses_no_sandbox(joined: Cable) -> None:
    places = (joined.near, joined.far, joined.far)
    with stack(queue_s=60.0, places=places) as floor, contextlib.ExitStack() as clients:
        calling = {call: floor.client(call) for call in CALLS}
        for client in calling.values():
            clients.callback(client.kill)
        for call in ("exec", "evaluate"):
            calling[call].call()
            wait_until(calling[call].commands, floor.log)
        joined.cut()
        for call in ("start", "upload", "close"):
            calling[call].call()
        wait_until(lambda: floor.pool.status().nodes[0].state == "unreachable", floor.log)
        for client in calling.values():
            client.finish_commands()
        joined.heal()
        ended = {call: client.ended() for call, client in calling.items()}
        if "SandboxError" not in ended["upload"].raised:  # it is not tried again
            assert ended["upload"].said == str(UPLOAD_BYTES)
        assert all(ended[call].raised == [] for call in CALLS if call != "upload"), ended
        assert (ended["start"].said, ended["exec"].said, ended["close"].said) == ("0", "137", "closed")
        assert '"ok":true' in ended["evaluate"].said
        for client in calling.values():
            client.leave()
        floor.assert_healed()


def test_a_client_that_is_cut_off_for_longer_than_its_lease_has_lost_it(joined: Cable) -> None:
    with (
        stack(places=(joined.near, joined.near, joined.far)) as floor,
        floor.caught("exec") as (client, _),
    ):
        joined.cut()
        floor.assert_healed()
        joined.heal()
        ended = client.ended()
        assert "LeaseLost" in ended.raised or "SandboxLost" in ended.raised, ended
        client.leave()
        floor.assert_healed()
