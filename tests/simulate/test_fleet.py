from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.policy.engine import EngineError
from hone.policy.engines.fleet import choose
from hone.simulate.fleet import SimulatedFleet
from hone.simulate.virtual_time import run

TIMEOUT_S = 1000.0


def now() -> float:
    return asyncio.get_running_loop().time()


async def ends(*waits: Coroutine[Any, Any, None]) -> list[float]:
    """Return when each coroutine ended."""

    async def timed(wait: Coroutine[Any, Any, None]) -> float:
        await wait
        return now()

    return list(await asyncio.gather(*map(timed, waits)))


def test_replies_beyond_the_batch_wait_for_their_server():
    async def main() -> tuple[list[float], float, float]:
        fleet = SimulatedFleet(1, replies=2)
        times = await ends(*(fleet.reply(f"r{n}", 10, TIMEOUT_S) for n in range(3)))
        return times, fleet.busy_share(), fleet.sampled_share()

    times, busy, sampled = run(main())
    assert times == [10, 10, 20]
    assert (busy, sampled) == (1, 0.75)


def test_replies_beside_each_other_are_slower():
    async def main() -> list[float]:
        fleet = SimulatedFleet(1, replies=4, slowdown=0.5)
        return await ends(*(fleet.reply(f"r{seconds}", seconds, TIMEOUT_S) for seconds in (10, 10, 40)))

    # three at 1/2 of their speed until both short ones have ended, then the long one at full speed
    assert run(main()) == [20, 20, 20 + 30]


@given(
    seconds=st.lists(st.integers(1, 50), min_size=1, max_size=12),
    replies=st.integers(1, 6),
    update=st.integers(0, 200),
)
def test_server_whose_replies_share_its_time_does_all_of_their_work(
    seconds: list[int], replies: int, update: int
):
    async def main() -> float:
        fleet = SimulatedFleet(1, replies=replies, slowdown=1.0)

        async def publish() -> None:
            await asyncio.sleep(update)
            await fleet.publish(7, partial=True)

        every = [fleet.reply(str(number), each, TIMEOUT_S) for number, each in enumerate(seconds)]
        *times, _ = await ends(*every, publish())
        return max(times)

    total = sum(seconds)
    assert run(main()) == pytest.approx(total + (7 if update < total else 0))


def test_conversations_spread_over_servers_and_stay_there():
    async def main() -> list[float]:
        fleet = SimulatedFleet(2, replies=1)
        await ends(fleet.reply("a", 1, TIMEOUT_S), fleet.reply("b", 1, TIMEOUT_S))
        return await ends(fleet.reply("a", 1, TIMEOUT_S), fleet.reply("b", 1, TIMEOUT_S))

    assert run(main()) == [2, 2]


@given(
    homes=st.lists(st.integers(0, 3), min_size=1, max_size=60),
    session=st.integers(0, 3),
)
def test_server_is_chosen_as_by_the_real_fleet(homes: list[int], session: int):
    async def main() -> None:
        fleet = SimulatedFleet(3, replies=100)
        loads, known = dict.fromkeys(range(3), 0), dict[str, int]()
        waiting: list[asyncio.Task[None]] = []
        for name in map(str, [*homes, session]):
            expected = choose(loads, known.get(name))
            waiting.append(asyncio.create_task(fleet.reply(name, 10, TIMEOUT_S)))
            await asyncio.sleep(0)
            loads[expected] += 1
            known[name] = expected
            assert [server.in_flight for server in fleet._servers] == list(loads.values())
        await asyncio.gather(*waiting)

    run(main())


def test_update_without_partial_rollouts_waits_for_replies_under_way():
    async def main() -> list[float]:
        fleet = SimulatedFleet(1, replies=4)

        async def later() -> None:
            await asyncio.sleep(2)
            await fleet.reply("b", 1, TIMEOUT_S)

        async def publish() -> None:
            await asyncio.sleep(1)
            await fleet.publish(5, partial=False)

        return await ends(fleet.reply("a", 10, TIMEOUT_S), publish(), later())

    assert run(main()) == [10, 15, 16]


def test_update_with_partial_rollouts_makes_replies_stand_still_and_go_on():
    async def main() -> list[float]:
        fleet = SimulatedFleet(1, replies=4)

        async def publish() -> None:
            await asyncio.sleep(1)
            await fleet.publish(5, partial=True)

        return await ends(fleet.reply("a", 10, TIMEOUT_S), fleet.reply("b", 3, TIMEOUT_S), publish())

    assert run(main()) == [15, 8, 6]


def test_reply_of_a_dead_server_begins_again_on_another():
    async def main() -> list[float]:
        fleet = SimulatedFleet(3, replies=4)
        deaths = asyncio.create_task(fleet.kill_servers(6, restart_s=3))
        times = await ends(fleet.reply("a", 10, TIMEOUT_S))
        deaths.cancel()
        return times

    assert run(main()) == [22.5]  # servers 0 and 1 died on it at 6 and 12 s; it waited 0.25 and 0.5 s


def test_reply_whose_servers_all_die_or_are_slow_is_an_engine_error():
    async def main() -> None:
        fleet = SimulatedFleet(2, replies=4)
        with pytest.raises(EngineError, match="no reply within 5 s"):
            await fleet.reply("slow", 10, 5)
        assert now() == 5
        deaths = asyncio.create_task(fleet.kill_servers(1, restart_s=0.5))
        with pytest.raises(EngineError, match="the servers died"):
            await fleet.reply("a", 1000, TIMEOUT_S)
        deaths.cancel()

    run(main())
