"""Engine servers under virtual time, to which replies are assigned as `hone.policy.engines.fleet` does.

A reply takes its seconds whatever else its server samples, up to `replies` at a time; further ones wait in
the server's queue. So the seconds of a reply are those under the load that the server is meant to have.
"""

from __future__ import annotations

import asyncio
from collections import deque

from hone.policy.engine import EngineError
from hone.policy.engines.balance import max_load
from hone.utils.busy import BusyMeter

RETRIES = 3  # of a reply whose server died; see `RemoteEngineSettings.retries`
_BACKOFF_S = 0.25  # before the first of them; doubles


class _ServerDied(Exception):
    pass


class _Server:
    def __init__(self, replies: int) -> None:
        self.in_flight = 0  # replies that it samples or that wait for it
        self.healthy = True
        self.busy = BusyMeter(1, asyncio.get_running_loop().time)
        self._free = replies
        self._queue: deque[asyncio.Future[None]] = deque()
        self._sampled: dict[asyncio.Future[None], None] = {}

    async def acquire(self, deadline: float) -> None:
        """Wait for a place in the batch. Raises TimeoutError at `deadline`, _ServerDied."""
        if self._free:
            self._free -= 1
            return
        loop = asyncio.get_running_loop()
        granted = loop.create_future()
        timer = loop.call_at(deadline, _end, granted, TimeoutError())
        self._queue.append(granted)
        try:
            await granted
        except asyncio.CancelledError:
            if not granted.cancelled() and granted.exception() is None:
                self.release()  # it was granted in the same turn of the loop
            raise
        finally:
            timer.cancel()

    def release(self) -> None:
        while self._queue:
            granted = self._queue.popleft()
            if not granted.done():
                granted.set_result(None)
                return
        self._free += 1

    async def sample(self, seconds: float, deadline: float) -> None:
        """Sample for `seconds`. Raises TimeoutError at `deadline`, _ServerDied."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        end = loop.time() + seconds
        late = None if end <= deadline else TimeoutError()
        timer = loop.call_at(min(end, deadline), _end, ended, late)
        self._sampled[ended] = None
        try:
            await ended
        finally:
            timer.cancel()
            del self._sampled[ended]

    def die(self) -> None:
        self.healthy = False
        queue, self._queue = self._queue, deque()
        for future in (*self._sampled, *queue):
            _end(future, _ServerDied())


class SimulatedFleet:
    """A number of equal servers; create it inside of the event loop."""

    def __init__(self, servers: int, replies: int) -> None:
        """`replies`: that each server samples at a time."""
        loop = asyncio.get_running_loop()
        self._servers = [_Server(replies) for _ in range(servers)]
        self._homes: dict[str, _Server] = {}  # session -> the server that has its prefix cached
        self._in_flight = 0
        self._healthy = servers
        self._open = asyncio.Event()  # not while weights are updated
        self._open.set()
        self._changed = asyncio.Event()  # a server is healthy again, or nothing is in flight
        self._still_since: float | None = None  # when replies under way began to stand still
        self._still_s = 0.0  # for how long they stood still before that
        self._sampled = BusyMeter(servers * replies, loop.time)
        self._deaths = 0

    async def reply(self, session: str, seconds: float, timeout_s: float) -> None:
        """Wait for a reply. Raises EngineError after `timeout_s`, or when its servers died too often."""
        deadline = asyncio.get_running_loop().time() + timeout_s
        for failures in range(1, RETRIES + 2):
            server = await self._choose(session)
            server.in_flight += 1
            self._in_flight += 1
            try:
                with server.busy.use():
                    return await self._sample(server, seconds, deadline)
            except TimeoutError:
                raise EngineError(f"the engine gave no reply within {timeout_s:g} s") from None
            except _ServerDied:
                pass
            finally:
                server.in_flight -= 1
                self._in_flight -= 1
                if not self._in_flight:
                    self._changed.set()
            await asyncio.sleep(_BACKOFF_S * 2 ** (failures - 1))
        raise EngineError(f"{RETRIES + 1} attempts to get a reply failed: the servers died")

    def release(self, session: str) -> None:
        self._homes.pop(session, None)

    async def publish(self, seconds: float, *, partial: bool) -> None:
        """Update the weights. With `partial`, replies stand still and go on; otherwise they end first."""
        self._open.clear()
        try:
            while not partial and self._in_flight:
                self._changed.clear()
                await self._changed.wait()
            self._still_since = asyncio.get_running_loop().time()
            await asyncio.sleep(seconds)
        finally:
            self._still_s, self._still_since = self._stood_still(), None
            self._open.set()

    async def kill_servers(self, every_s: float, restart_s: float) -> None:
        """Kill one server after the other, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await asyncio.sleep(every_s)
            server = self._servers[self._deaths % len(self._servers)]
            self._deaths += 1
            if server.healthy:
                self._healthy -= 1
                server.die()
                loop.call_later(restart_s, self._restart, server)

    @property
    def deaths(self) -> int:
        return self._deaths

    def busy_share(self) -> float:
        """Return the mean share of the time that a server had a reply under way, since the last call."""
        return sum(server.busy.share() for server in self._servers) / len(self._servers)

    def sampled_share(self) -> float:
        """Return the mean share of the places in the servers' batches that sampled, since the last call."""
        return self._sampled.share()

    def _stood_still(self) -> float:
        """Return for how many seconds replies under way have stood still so far."""
        if self._still_since is None:
            return self._still_s
        return self._still_s + asyncio.get_running_loop().time() - self._still_since

    def _restart(self, server: _Server) -> None:
        server.healthy = True
        self._healthy += 1
        self._changed.set()

    async def _sample(self, server: _Server, seconds: float, deadline: float) -> None:
        await server.acquire(deadline)
        try:
            while seconds > 0:
                before = self._stood_still()
                with self._sampled.use():
                    await server.sample(seconds, deadline)
                    seconds = self._stood_still() - before
                    if seconds and self._still_since is not None:
                        await self._open.wait()
        finally:
            server.release()

    async def _choose(self, session: str) -> _Server:
        """Return the server that `hone.policy.engines.balance.choose` returns, which counts all requests."""
        while not (self._open.is_set() and self._healthy):
            if self._open.is_set():
                self._changed.clear()
                await self._changed.wait()
            else:
                await self._open.wait()
        home = self._homes.get(session)
        most = max_load(self._in_flight, self._healthy)
        if home is None or not home.healthy or home.in_flight >= most:
            healthy = [server for server in self._servers if server.healthy]
            home = self._homes[session] = min(healthy, key=lambda server: server.in_flight)
        return home


def _end(future: asyncio.Future[None], error: Exception | None) -> None:
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
