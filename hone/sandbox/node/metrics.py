"""Prometheus metrics of a node."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_START_S = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_EXEC_S = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.5, 1.0, 5.0, 15.0, 60.0, 300.0, 1800.0)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.sandboxes = Gauge(
            "hone_node_sandboxes", "Sandboxes by state.", ["state"], registry=self.registry
        )
        self.starts = Counter("hone_node_starts", "Sandboxes that were started.", registry=self.registry)
        self.start_failures = Counter(
            "hone_node_start_failures", "Starts that failed, by code.", ["code"], registry=self.registry
        )
        self.start_seconds = Histogram(
            "hone_node_start_seconds", "Starts.", buckets=_START_S, registry=self.registry
        )
        self.exec_seconds = Histogram(
            "hone_node_exec_seconds", "Commands.", buckets=_EXEC_S, registry=self.registry
        )
        self.output_bytes = Counter(
            "hone_node_output_bytes", "Bytes that commands wrote.", registry=self.registry
        )
        self.refused = Counter(
            "hone_node_refused", "Requests answered with an error, by code.", ["code"], registry=self.registry
        )
        self.expired = Counter("hone_node_expired", "Sandboxes that expired.", registry=self.registry)

    def refuse(self, code: str) -> None:
        self.refused.labels(code).inc()
