"""The clock of leases."""

from __future__ import annotations

from hone.utils.clock import Clock, monotonic

STEP_S = 2.0  # the longest time between two calls of `now` that counts; the reaper calls it every 0.5 s


class LeaseClock:
    """Monotonic seconds without the times in which this process was stopped or starved.

    No client can renew a lease then, so that time must not expire it.
    """

    def __init__(self, clock: Clock = monotonic) -> None:
        self._clock = clock
        self._last = clock()
        self._now = 0.0

    def now(self) -> float:
        """Return lease time in seconds; call it more often than every STEP_S."""
        at = self._clock()
        self._now += min(max(at - self._last, 0.0), STEP_S)
        self._last = at
        return self._now
