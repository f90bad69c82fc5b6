"""A thread that asks its event loop: answers, failures, cancellation; it never outlives its owner."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from typing import Any

import pytest

from hone.integrations.bridge import Ask, Stopped, in_thread

NAME = "a bridged thread"


def alive() -> int:
    return sum(thread.name == NAME for thread in threading.enumerate())


async def answer(value: Any) -> Any:
    await asyncio.sleep(0)
    return value


def run(work: Callable[[Ask], Any]) -> Any:
    async def main() -> Any:
        async with asyncio.timeout(120):
            return await in_thread(work, name=NAME)

    try:
        return asyncio.run(main())
    finally:
        assert alive() == 0


def test_coroutine_is_awaited_in_the_owner_task() -> None:
    owners = []

    async def who() -> int:
        owners.append(asyncio.current_task())
        return len(owners)

    async def main() -> tuple[int, bool]:
        result = await in_thread(lambda ask: ask(who) + ask(who), name=NAME)
        return result, owners == [asyncio.current_task()] * 2

    assert asyncio.run(main()) == (3, True)
    assert run(lambda ask: [ask(lambda i=i: answer(i)) for i in range(50)]) == list(range(50))
    assert run(lambda ask: "asked nothing") == "asked nothing"


def test_error_of_the_thread_is_raised_by_the_owner() -> None:
    def fail(ask: Ask) -> None:
        ask(lambda: answer(1))
        raise KeyError("lost")

    with pytest.raises(KeyError, match="lost"):
        run(fail)


def test_error_of_a_coroutine_is_raised_by_the_owner() -> None:
    seen: list[str] = []

    async def fail() -> None:
        raise LookupError("no engine")

    def work(ask: Ask) -> None:
        try:
            ask(fail)
        except Exception:
            seen.append("an agent that goes on after any error")
        except Stopped:
            seen.append("stopped")
            ask(lambda: answer(1))  # asking again while unwinding stops again
            seen.append("never")

    with pytest.raises(LookupError, match="no engine"):
        run(work)
    assert seen == ["stopped"]


@pytest.mark.parametrize("waits", ["for an answer", "for nothing"])
def test_cancelled_owner_stops_its_thread(waits: str) -> None:
    started, going_on = asyncio.Event(), threading.Event()

    async def never() -> None:
        started.set()
        await asyncio.Event().wait()

    def work(ask: Ask) -> None:
        if waits == "for an answer":
            ask(never)
        ask(lambda: asyncio.sleep(0, started.set()))
        going_on.wait(120)  # computes, until it asks again
        ask(lambda: answer(1))
        raise AssertionError("it should have been stopped")

    async def main() -> None:
        task = asyncio.create_task(in_thread(work, name=NAME))
        async with asyncio.timeout(120):
            await started.wait()
            task.cancel()
            going_on.set()
            with pytest.raises(asyncio.CancelledError):
                await task
        assert alive() == 0

    asyncio.run(main())


def test_deadline_of_the_owner_cancels_the_coroutine() -> None:
    async def main() -> None:
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await in_thread(lambda ask: ask(asyncio.Event().wait), name=NAME)
        assert alive() == 0

    asyncio.run(main())


def test_threads_are_not_limited_by_a_pool() -> None:
    """Each has its own: all are at their question before one is answered."""
    here, count = 0, 64

    async def main() -> list[int]:
        together = asyncio.Event()

        async def meet() -> int:
            nonlocal here
            here += 1
            if here == count:
                together.set()
            await together.wait()
            return here

        async with asyncio.timeout(120):
            return await asyncio.gather(*(in_thread(lambda ask: ask(meet), name=NAME) for _ in range(count)))

    assert asyncio.run(main()) == [count] * count
    assert alive() == 0
