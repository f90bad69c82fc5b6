"""kill -9 of a node server in the middle of every call."""

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
def test_killed_node_ends_calls_with_typed_error_and_leaves_nothing(floor: Stack, call: str) -> None:
    with floor.caught(call) as (client, _):
        floor.node.kill()
        ended = client.ended()
        if call == "close":  # what was to be closed is gone
            assert ended.raised == []
        else:
            assert "SandboxError" in ended.raised, ended
        floor.node.start()
        client.leave()
    floor.assert_healed()
