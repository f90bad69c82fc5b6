"""Retries with exponential back-off."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

ENDLESS = 1 << 60  # attempts

Result = TypeVar("Result")


def backoff_delays(
    first_s: float, *, factor: float = 2.0, max_s: float = 60.0, jitter: float = 0.0
) -> Iterator[float]:
    """Yield delays in seconds, without end: first_s, first_s * factor, ... but at most `max_s`.

    Args:
        jitter: the largest share of a delay, in [0, 1], that is taken off at random.
    """
    delay_s = first_s
    while True:
        yield min(delay_s, max_s) * (1 - jitter * random.random())
        delay_s = min(delay_s * factor, max_s)


async def retry(
    call: Callable[[], Awaitable[Result]],
    *,
    attempts: int,
    delays: Iterator[float],
    transient: Callable[[Exception], bool],
    on_retry: Callable[[Exception, float], None] | None = None,
) -> Result:
    """Return the first result of `call`, which is tried up to `attempts` times.

    Args:
        delays: seconds to sleep after each failed attempt; see `backoff_delays`.
        transient: whether an exception is worth another attempt.
        on_retry: is told the exception and the delay before each sleep.
    Raises:
        Exception: the first one that is not transient, or that of the last attempt.
    """
    for attempt in range(1, attempts + 1):
        try:
            return await call()
        except Exception as error:
            if attempt == attempts or not transient(error):
                raise
            delay_s = next(delays)
            if on_retry is not None:
                on_retry(error, delay_s)
            await asyncio.sleep(delay_s)
    raise ValueError(f"attempts must be at least 1, not {attempts}")
