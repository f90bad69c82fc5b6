"""Which replica gets the next request."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Hashable, Mapping
from typing import Generic, TypeVar

Server = TypeVar("Server", bound=Hashable)

SLACK = 4  # requests that any replica may have, whatever the load of the others
STRETCH = 1.5  # of its fair share of all requests that a replica may have
_MAX_SESSIONS = 100_000  # conversations whose server is remembered


class Homes(Generic[Server]):
    """The last replica of each conversation, which holds its KV cache; the oldest are forgotten."""

    def __init__(self) -> None:
        self._replicas: OrderedDict[str, Server] = OrderedDict()

    def get(self, session: str | None) -> Server | None:
        return None if session is None else self._replicas.get(session)

    def set(self, session: str | None, replica: Server) -> None:
        """Remember the replica of a conversation; a request without one (None) has no cache."""
        if session is None:
            return
        self._replicas[session] = replica
        self._replicas.move_to_end(session)
        while len(self._replicas) > _MAX_SESSIONS:
            self._replicas.popitem(last=False)

    def drop(self, session: str) -> None:
        self._replicas.pop(session, None)


def choose(loads: Mapping[Server, int], home: Server | None) -> Server:
    """Return the replica for one more request: the one with the conversation's KV cache unless overloaded.

    That is `home`, the conversation's last replica, while it has fewer than `max_load` requests;
    otherwise the least loaded.

    Args:
        loads: requests in flight per replica.

    Example: loads {a: 5, b: 0}, home a -> b, since one may have max(4, ceil(1.5 * 6 / 2)) = 5 at most.
    """
    if home is not None and home in loads and loads[home] < max_load(sum(loads.values()), len(loads)):
        return home
    return min(loads, key=lambda server: loads[server])


def max_load(in_flight: int, replicas: int) -> int:
    """Return how many of one more than `in_flight` requests one replica may have, the new one included."""
    return max(SLACK, math.ceil(STRETCH * (in_flight + 1) / replicas))
