from __future__ import annotations

import asyncio
from itertools import islice

import pytest

from hone.utils.clock import monotonic
from hone.utils.retry import backoff_delays, retry
from tests import virtual_time


def test_delays_double_up_to_the_maximum():
    assert list(islice(backoff_delays(1, max_s=5), 5)) == [1, 2, 4, 5, 5]


def test_jitter_only_shortens_delays():
    assert all(2 <= delay <= 4 for delay in islice(backoff_delays(4, factor=1, jitter=0.5), 200))


def _failing(*errors: Exception):
    left = list(errors)

    async def call() -> str:
        if left:
            raise left.pop(0)
        return "done"

    return call


def test_transient_errors_are_retried_after_their_delays():
    seen: list[tuple[str, float]] = []

    async def run() -> tuple[str, float]:
        result = await retry(
            _failing(OSError("a"), OSError("b")),
            attempts=3,
            delays=backoff_delays(60, factor=3),
            transient=lambda error: isinstance(error, OSError),
            on_retry=lambda error, delay_s: seen.append((str(error), delay_s)),
        )
        return result, monotonic()

    assert virtual_time.run(run()) == ("done", 120)
    assert seen == [("a", 60), ("b", 60)]


@pytest.mark.parametrize(("attempts", "errors", "raised"), [(2, "ab", "b"), (5, "x", "x")])
def test_last_or_permanent_error_is_raised(attempts: int, errors: str, raised: str):
    kinds = {"x": ValueError("x")}
    call = _failing(*[kinds.get(name, OSError(name)) for name in errors])

    async def run() -> None:
        await retry(
            call,
            attempts=attempts,
            delays=backoff_delays(1),
            transient=lambda error: isinstance(error, OSError),
        )

    with pytest.raises((OSError, ValueError), match=raised):
        virtual_time.run(run())


def test_virtual_time_fires_timers_in_order_and_waits_for_threads():
    async def run() -> list[str]:
        order: list[str] = []

        async def after(delay_s: float, name: str) -> None:
            await asyncio.sleep(delay_s)
            order.append(name)

        async with asyncio.TaskGroup() as group:
            group.create_task(after(86_400, "day"))
            group.create_task(after(1, "second"))
            before = monotonic()
            order.append(await asyncio.to_thread(lambda: "thread"))
            assert monotonic() == before  # no time passes while a thread runs
        return order

    assert virtual_time.run(run()) == ["thread", "second", "day"]
