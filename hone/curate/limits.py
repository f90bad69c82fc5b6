"""Time limits of test runs, from the time that the tests take with the reference fix."""

from __future__ import annotations

import math

MIN_LIMIT_S = 30.0
SLOWER = 6.0  # factor by which a busy machine, or another correct fix, may be slower


def run_limit_s(seconds: float) -> float:
    """Return the limit of a run whose tests take `seconds` with the reference fix, in seconds.

    >>> run_limit_s(0.4), run_limit_s(20.0)
    (30.0, 120.0)
    """
    return max(MIN_LIMIT_S, float(math.ceil(SLOWER * seconds)))
