from __future__ import annotations

import asyncio
import time

import pytest

from hone.simulate.errors import DeadlockError
from hone.simulate.virtual_time import run


def test_a_year_passes_at_once():
    async def main() -> float:
        await asyncio.sleep(365 * 86400)
        return asyncio.get_running_loop().time()

    began = time.monotonic()
    assert run(main()) == pytest.approx(365 * 86400)
    assert time.monotonic() - began < 60


def test_waiting_for_nothing_is_a_deadlock():
    async def main() -> None:
        await asyncio.sleep(3)
        await asyncio.Event().wait()

    with pytest.raises(DeadlockError, match=r"at 3\.000 s"):
        run(main())


def test_thread_is_refused():
    with pytest.raises(RuntimeError, match="needs a thread"):
        run(asyncio.to_thread(print))


def test_tasks_are_cancelled_in_the_order_of_their_creation():
    async def main() -> list[int]:
        ended: list[int] = []

        async def wait(number: int) -> None:
            try:
                await asyncio.sleep(9)
            finally:
                ended.append(number)

        async def fail() -> None:
            await asyncio.sleep(1)
            raise ValueError

        try:
            async with asyncio.TaskGroup() as tasks:
                for number in range(50):
                    tasks.create_task(wait(number))
                tasks.create_task(fail())
        except* ValueError:
            pass
        return ended

    assert run(main()) == list(range(50))
