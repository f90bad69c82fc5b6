from __future__ import annotations

import asyncio

from hone.rollout.slots import Slots


def test_free_slot_goes_to_the_most_urgent_waiter():
    async def run() -> list[str]:
        slots, served = Slots(1), list[str]()

        async def hold(name: str, *priority: float) -> None:
            async with slots.hold(priority):
                served.append(name)
                await asyncio.sleep(0)

        async with asyncio.TaskGroup() as jobs:
            for name, priority in (("first", 9), ("late", 2), ("soon", 1), ("soon, too", 1)):
                jobs.create_task(hold(name, priority))
        return served

    assert asyncio.run(run()) == ["first", "soon", "soon, too", "late"]


def test_cancelled_waiters_keep_no_slot():
    async def run() -> None:
        slots = Slots(1)
        entered = asyncio.Event()

        async def hold() -> None:
            async with slots.hold((0,)):
                entered.set()
                await asyncio.get_running_loop().create_future()

        holder = asyncio.create_task(hold())
        await entered.wait()
        waiting = [asyncio.create_task(hold()) for _ in range(3)]
        await asyncio.sleep(0)
        waiting[0].cancel()
        holder.cancel()  # its slot goes to the second
        await asyncio.sleep(0)
        await asyncio.sleep(0)
        waiting[1].cancel()  # in the turn in which it may have been granted
        await asyncio.gather(holder, *waiting[:2], return_exceptions=True)
        waiting[2].cancel()
        await asyncio.gather(waiting[2], return_exceptions=True)
        async with asyncio.timeout(60), slots.hold((0,)):
            pass

    asyncio.run(run())
