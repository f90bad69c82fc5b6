"""Prometheus metrics of a pool."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from hone.sandbox.remote.wire import StatusReply

_WAITS = (0.001, 0.01, 0.1, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)
_ALLOCATES = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 15.0, 60.0, 300.0, 1800.0)


class Metrics(Collector):
    """Counters that are updated by events, and gauges that are read from the pool's status at each scrape."""

    def __init__(self, status: Callable[[], StatusReply]) -> None:
        self._status = status
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
        found = self._status()
        leases = GaugeMetricFamily("hone_pool_leases", "Living leases", labels=["state"])
        for state, number in Counts(lease.state for lease in found.leases).items():
            leases.add_metric([state], number)
        events = CounterMetricFamily(
            "hone_pool_events", "Leases allocated, closed, expired, lost; requests refused", labels=["event"]
        )
        for name, number in found.totals.items():
            events.add_metric([name], number)
        nodes = GaugeMetricFamily("hone_pool_nodes", "Nodes", labels=["state"])
        for state, number in Counts(node.state for node in found.nodes).items():
            nodes.add_metric([state], number)
        slots = GaugeMetricFamily("hone_pool_node_sandboxes", "Places taken on a node", labels=["node"])
        room = GaugeMetricFamily("hone_pool_node_capacity", "Places of a node", labels=["node"])
        failures = CounterMetricFamily(
            "hone_pool_node_start_failures", "Starts that failed on a node", labels=["node"]
        )
        for node in found.nodes:
            slots.add_metric([node.url], node.active + node.starting)
            room.add_metric([node.url], node.capacity)
            failures.add_metric([node.url], node.failures)
        yield from (leases, events, nodes, slots, room, failures)
