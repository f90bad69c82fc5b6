"""Engine servers under virtual time, to which replies are assigned as `hone.policy.engines.fleet` does.

A server samples up to `replies` at a time; further ones wait in its queue. With n replies in its batch each
of them takes 1 + slowdown x (n - 1) times the seconds that it takes alone.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections import deque

from hone.policy.engine import EngineError
from hone.policy.engines.balance import max_load
from hone.utils.busy import BusyMeter

RETRIES = 3  # of a reply whose server died; see `RemoteEngineSettings.retries`
_BACKOFF_S = 0.25  # before the first of them; doubles


class _ServerDied(Exception):
    pass


class _Server:
    """Its clock counts the seconds that a reply alone would have been sampled for."""

    def __init__(self, replies: int, slowdown: float) -> None:
        self._slowdown = slowdown
        self._clock, self._read_at = 0.0, asyncio.get_running_loop().time()
        self._stopped = False
        self._batch: list[tuple[float, int, asyncio.Future[None]]] = []  # by the clock at which they end
        self._order = itertools.count()
        self._timer: asyncio.TimerHandle | None = None
        self.in_flight = 0  # replies that it samples or that wait for it
        self.healthy = True
        self.busy = BusyMeter(1, asyncio.get_running_loop().time)
        self._free = replies
        self._queue: deque[asyncio.Future[None]] = deque()

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
        """Sample what takes `seconds` alone. Raises TimeoutError at `deadline`, _ServerDied."""
        loop = asyncio.get_running_loop()
        ended = loop.create_future()
        late = loop.call_at(deadline, _end, ended, TimeoutError())
        self._read_clock()
        entry = (self._clock + seconds, next(self._order), ended)
        heapq.heappush(self._batch, entry)
        self._set_timer()
        try:
            await ended
        except BaseException:  # too late, died or cancelled; re-raised
            if entry in self._batch:
                self._read_clock()
                self._batch.remove(entry)
                heapq.heapify(self._batch)
                self._set_timer()
            raise
        finally:
            late.cancel()

    def stop(self) -> None:
        """Let the replies in the batch stand still until `go_on`."""
        self._read_clock()
        self._stopped = True
        self._set_timer()

    def go_on(self) -> None:
        self._read_clock()
        self._stopped = False
        self._set_timer()

    def die(self) -> None:
        self.healthy = False
        queue, self._queue = self._queue, deque()
        for future in (*(entry[2] for entry in self._batch), *queue):
            _end(future, _ServerDied())

    @property
    def _seconds_each(self) -> float:
        """Seconds in which the clock advances by one."""
        return 1 + self._slowdown * (len(self._batch) - 1)

    def _read_clock(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._batch and not self._stopped:
            self._clock += (now - self._read_at) / self._seconds_each
        self._read_at = now

    def _set_timer(self) -> None:
        """Wake up when the first reply of the batch ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._batch and not self._stopped:
            left = max(0.0, self._batch[0][0] - self._clock) * self._seconds_each
            self._timer = asyncio.get_running_loop().call_at(self._read_at + left, self._end_first)

    def _end_first(self) -> None:
        self._read_clock()
        self._clock = max(self._clock, self._batch[0][0])  # its end, but for rounding
        while self._batch and self._batch[0][0] <= self._clock:
            _end(heapq.heappop(self._batch)[2], None)
        self._set_timer()


class SimulatedFleet:
    """A number of equal servers; create it inside of the event loop."""

    def __init__(self, servers: int, replies: int, slowdown: float = 0.0) -> None:
        """`replies`: that each server samples at a time."""
        loop = asyncio.get_running_loop()
        self._servers = [_Server(replies, slowdown) for _ in range(servers)]
        self._homes: dict[str, _Server] = {}  # session -> the server that has its prefix cached
        self._in_flight = 0
        self._healthy = servers
        self._open = asyncio.Event()  # not while weights are updated
        self._open.set()
        self._changed = asyncio.Event()  # a server is healthy again, or nothing is in flight
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
            for server in self._servers:
                server.stop()
            await asyncio.sleep(seconds)
        finally:
            for server in self._servers:
                server.go_on()
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

    def _restart(self, server: _Server) -> None:
        server.healthy = True
        self._healthy += 1
        self._changed.set()

    async def _sample(self, server: _Server, seconds: float, deadline: float) -> None:
        await server.acquire(deadline)
        try:
            with self._sampled.use():
                await server.sample(seconds, deadline)
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
