"""Prometheus metrics of a pool."""

from __future__ import annotations

from collections import Counter as Counts
from collections.abc import Callable, Iterator, Mapping

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
        gauge, counter = GaugeMetricFamily, CounterMetricFamily
        leases = Counts(lease.state for lease in found.leases)
        nodes = Counts(node.state for node in found.nodes)
        taken = {node.url: node.active + node.starting for node in found.nodes}
        capacity = {node.url: node.capacity for node in found.nodes}
        failures = {node.url: node.failures for node in found.nodes}
        events = "Leases allocated, closed, expired, lost; requests refused"
        yield _family(gauge("hone_pool_leases", "Living leases", labels=["state"]), leases)
        yield _family(counter("hone_pool_events", events, labels=["event"]), found.totals)
        yield _family(gauge("hone_pool_nodes", "Nodes", labels=["state"]), nodes)
        yield _family(gauge("hone_pool_node_sandboxes", "Places taken on a node", labels=["node"]), taken)
        yield _family(gauge("hone_pool_node_capacity", "Places of a node", labels=["node"]), capacity)
        failed = counter("hone_pool_node_start_failures", "Starts that failed on a node", labels=["node"])
        yield _family(failed, failures)


def _family(family: GaugeMetricFamily | CounterMetricFamily, values: Mapping[str, float]) -> Metric:
    """Return a metric with one value for each label."""
    for label, value in values.items():
        family.add_metric([label], value)
    return family
