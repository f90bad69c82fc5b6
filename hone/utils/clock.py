"""The one clock that deadlines, leases and back-offs read.

In async code every deadline is measured with the event loop's clock, which `asyncio.sleep` and
`asyncio.timeout` also follow. A test that runs the code on a loop with virtual time moves all of them.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

Clock = Callable[[], float]  # seconds from an arbitrary start; never goes back


def monotonic() -> float:
    """Seconds of the running event loop's clock; outside a loop, of `time.monotonic`."""
    try:
        return asyncio.get_running_loop().time()
    except RuntimeError:
        return time.monotonic()
