"""kill -9 of the pool server in the middle of every call: what a client was promised, it has."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.chaos.stack import CALLS, LONG_TTL_S, UPLOAD_BYTES, Stack, stack
from tests.services.process import require

pytestmark = [pytest.mark.sandbox, pytest.mark.full]

SAID = {
    "start": "0",  # requested again
    "exec": "137",  # commands do not pass through the pool
    "upload": str(UPLOAD_BYTES),
    "close": "closed",
}


@pytest.fixture(scope="module")
def floor() -> Iterator[Stack]:
    require()
    with stack(queue_s=60.0, ttl_s=LONG_TTL_S) as made:
        yield made


# Every run kills the pool in the middle of a start, when the sandbox exists and no reply has left.
@pytest.mark.parametrize("call", CALLS)
def test_killed_pool_continues_and_leaves_nothing(floor: Stack, call: str) -> None:
    with floor.caught(call) as (client, resume):
        floor.pool.kill()
        floor.pool.start()
        resume()
        if call == "exec":
            client.finish_commands()
        ended = client.ended()
        if call == "evaluate":  # it passes through the pool
            assert "SandboxError" in ended.raised, ended
        else:
            assert (ended.raised, ended.said) == ([], SAID[call])
        client.leave()
    floor.assert_healed()
