"""kill -9 of a client in the middle of every call: its leases end, and all that they held."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.stack import CALLS, Stack, stack
from tests.services.process import require

pytestmark = [pytest.mark.sandbox, pytest.mark.full]


@pytest.fixture(scope="module")
def floor() -> Iterator[Stack]:
    require()
    with stack() as made:
        yield made


@pytest.mark.parametrize("call", CALLS)
def test_a_client_that_is_killed_leaves_nothing(floor: Stack, call: str) -> None:
    with floor.caught(call) as (client, _):
        assert floor.left() != []  # while it lives: what it holds may end soon after it
        client.kill()
    floor.assert_healed()
