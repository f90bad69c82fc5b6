"""The metrics of a run: files in its directory, and experiment trackers."""

from __future__ import annotations

from hone.config import RunSettings
from hone.launch.reporter import Reporter
from hone.train.metrics import MetricsWriter
from hone.train.sinks.process import open_sinks


def open_metrics(settings: RunSettings, reporter: Reporter, *, kind: str = "train") -> MetricsWriter:
    """Open the sinks of `settings.metrics`; close them with the writer. Raises TrainError."""
    config = settings.model_dump(mode="json")
    sinks = open_sinks(settings.metrics, settings.run_dir, config, reporter.note)
    return MetricsWriter(settings.run_dir, kind=kind, sinks=sinks)
