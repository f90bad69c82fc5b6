"""Cache-aware routing: prefer the replica with the conversation's KV cache unless it is overloaded."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

Server = TypeVar("Server", bound=Hashable)

SLACK = 4  # requests that any replica may have, whatever the load of the others
STRETCH = 1.5  # of its fair share of all requests that a replica may have


def choose(loads: Mapping[Server, int], home: Server | None) -> Server:
    """Return the replica for one more request.

    That is `home`, the conversation's last replica, while it has fewer than `max_load(loads)` requests;
    otherwise the least loaded.

    Args:
        loads: requests in flight per replica.

    Example: loads {a: 5, b: 0}, home a -> b, since one may have max(4, ceil(1.5 * 6 / 2)) = 5 at most.
    """
    if home is not None and home in loads and loads[home] < max_load(loads):
        return home
    return min(loads, key=lambda server: loads[server])


def max_load(loads: Mapping[Server, int]) -> int:
    """Return how many requests one replica may have, the new one included."""
    return max(SLACK, math.ceil(STRETCH * (sum(loads.values()) + 1) / len(loads)))
