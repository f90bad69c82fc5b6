"""Which server a request goes to: the one with its conversation's cache, unless that one is overloaded."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from typing import TypeVar

Server = TypeVar("Server", bound=Hashable)

SLACK = 4  # requests that a server may always have, however idle the others are
STRETCH = 1.5  # times its share of all requests that a server may have


def choose(loads: Mapping[Server, int], home: Server | None) -> Server:
    """The server for one more request; `loads`: what each has, `home`: the conversation's last server.

    Home while it has less than `most(loads)` requests, else the least loaded: no server gets more than that.

    Example: loads {a: 5, b: 0}, home a -> b, since one may have max(4, ceil(1.5 * 6 / 2)) = 5 at most.
    """
    if home is not None and home in loads and loads[home] < most(loads):
        return home
    return min(loads, key=lambda server: loads[server])


def most(loads: Mapping[Server, int]) -> int:
    """How many requests one server may have, the new one among them."""
    return max(SLACK, math.ceil(STRETCH * (sum(loads.values()) + 1) / len(loads)))
