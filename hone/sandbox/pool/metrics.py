"""Prometheus metrics of a pool."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Iterable, Iterator, Mapping
from typing import Protocol

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hone.sandbox.pool.leases import State
from hone.sandbox.pool.nodes import Node
from hone.utils.clock import monotonic

_WAITS = (0.001, 0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
_ALLOCATES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)


class PoolState(Protocol):
    """The part of the pool that gauges are read from."""

    @property
    def totals(self) -> Mapping[str, int]: ...
    @property
    def fleet(self) -> Iterable[Node]: ...
    def counts(self) -> Mapping[State, int]:
        """Return the number of leases by state."""
        ...


class Metrics(Collector):
    """Counters that are updated by events, and gauges that are read from the pool at each scrape."""

    def __init__(self, pool: PoolState) -> None:
        self._pool = pool
        self._registry = CollectorRegistry()
        self.waited = Histogram(
            "hone_pool_queue_wait_seconds",
            "Time in the queue of leases that were placed",
            buckets=_WAITS,
            registry=self._registry,
        )
        self.allocated = Histogram(
            "hone_pool_allocate_seconds",
            "Time from the request to the reply of leases that became active, the queue included",
            buckets=_ALLOCATES,
            registry=self._registry,
        )
        self._errors = Counter(
            "hone_pool_errors", "Requests that ended in an error", ["code"], registry=self._registry
        )
        self._registry.register(self)

    def count_error(self, code: str) -> None:
        self._errors.labels(code).inc()

    def text(self) -> bytes:
        """Return all metrics in the text format of Prometheus."""
        return generate_latest(self._registry)

    def describe(self) -> list[Metric]:
        return []  # or registering would read a pool that is not open yet

    def collect(self) -> Iterator[Metric]:
        leases = GaugeMetricFamily("hone_pool_leases", "Living leases", labels=["state"])
        for state, number in self._pool.counts().items():
            leases.add_metric([state], number)
        yield leases
        ends = CounterMetricFamily(
            "hone_pool_events", "Leases allocated, closed, expired, lost; requests refused", labels=["event"]
        )
        for name, number in self._pool.totals.items():
            ends.add_metric([name], number)
        yield ends
        now = monotonic()
        nodes = GaugeMetricFamily("hone_pool_nodes", "Nodes", labels=["state"])
        for state, number in Counts(node.state(now) for node in self._pool.fleet).items():
            nodes.add_metric([state], number)
        yield nodes
        slots = GaugeMetricFamily("hone_pool_node_sandboxes", "Places taken on a node", labels=["node"])
        room = GaugeMetricFamily("hone_pool_node_capacity", "Places of a node", labels=["node"])
        failures = CounterMetricFamily(
            "hone_pool_node_start_failures", "Starts that failed on a node", labels=["node"]
        )
        for node in self._pool.fleet:
            slots.add_metric([node.url], len(node.slots))
            room.add_metric([node.url], node.capacity)
            failures.add_metric([node.url], node.failures)
        yield from (slots, room, failures)
