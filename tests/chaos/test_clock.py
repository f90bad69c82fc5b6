"""Wall clocks that jump, and servers that stand still: leases go by neither."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

import pytest

from tests.chaos.servers import frozen
from tests.chaos.stack import Stack, stack
from tests.services.process import require
from tests.waiting import let_pass, wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.full]

HOUR_S = 3600.0
TTL_S = 6.0  # of leases: longer than a client pauses before it asks a pool that starts again


def jumping(folder: Path) -> Mapping[str, str]:
    """The clock of these servers jumps by what is written to the file `clock`."""
    set_clock(folder, 0.0)
    code = Path(__file__).with_name("jumping_clock")
    return {"PYTHONPATH": str(code), "JUMPING_CLOCK": str(folder / "clock")}


def set_clock(folder: Path, offset_s: float) -> None:
    new = folder / "clock.new"
    new.write_text(str(offset_s))
    new.rename(folder / "clock")


@pytest.fixture(scope="module")
def floor() -> Iterator[Stack]:
    require()
    with stack(ttl_s=TTL_S, prepare=jumping) as made:
        yield made


@pytest.fixture
def jump(floor: Stack) -> Iterator[Callable[[float], None]]:
    yield lambda offset_s: set_clock(floor.folder, offset_s)
    set_clock(floor.folder, 0.0)


def age_s(floor: Stack) -> float:
    [lease] = floor.pool.status().leases
    return lease.age_s


@pytest.mark.parametrize("hours", [1, -1])
def test_a_jump_of_the_clock_ends_no_lease_that_is_renewed(
    floor: Stack, jump: Callable[[float], None], hours: int
) -> None:
    with floor.caught("exec") as (client, _):
        wait_until(lambda: age_s(floor) > 0.5, floor.log)
        jump(hours * HOUR_S)
        assert age_s(floor) > HOUR_S if hours > 0 else age_s(floor) == 0.0  # it is this clock that jumped
        let_pass(2 * TTL_S)
        floor.pool.kill()
        floor.pool.start()
        client.finish_commands()
        assert client.ended().said == "137"
        client.leave()
    floor.assert_healed()


@pytest.mark.parametrize("hours", [1, -1])
def test_a_jump_of_the_clock_keeps_no_unrenewed_lease(
    floor: Stack, jump: Callable[[float], None], hours: int
) -> None:
    with floor.caught("exec") as (client, _):
        client.kill()
        jump(hours * HOUR_S)
    floor.assert_healed()


def test_stopped_pool_expires_no_lease_of_blocked_clients(floor: Stack) -> None:
    with floor.caught("exec") as (client, _):
        with frozen([floor.pool.pid]):
            let_pass(2 * TTL_S)
        client.finish_commands()
        assert client.ended().said == "137"
        assert len(floor.pool.status().leases) == 1
        client.leave()
    floor.assert_healed()
