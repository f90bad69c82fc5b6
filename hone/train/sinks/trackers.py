"""Experiment trackers as sinks: W&B, trackio and MLflow, each through its own client.

The process of `hone.train.sinks.worker` uses them; it imports nothing of Hone but this package. A resumed run
writes to the same remote run, whose id is in `<folder>/run.json`.
"""

# pyright: reportMissingImports=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false
from __future__ import annotations

import json
import os
import time
import uuid
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Options = Mapping[str, Any]
"""tracker, project, run_name, offline, folder (of the tracker's files), config (all settings of the run)."""


class Tracker(Protocol):
    """The client of an experiment tracker."""

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None: ...

    def close(self) -> None: ...


class Wandb:
    """https://docs.wandb.ai; offline runs are sent later by `wandb sync`."""

    def __init__(self, options: Options) -> None:
        import wandb

        self._run = wandb.init(
            project=options["project"],
            name=options["run_name"],
            id=_run_id(options),
            resume="allow",
            dir=options["folder"],
            config=dict(options["config"]),
            mode="offline" if options["offline"] else None,  # None: WANDB_MODE, else online
            settings=wandb.Settings(console="off", silent=True, init_timeout=30.0),
        )
        self._series: set[str] = set()

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        if kind not in self._series:  # wandb's own step only grows, but a resumed run may repeat one
            self._series.add(kind)
            self._run.define_metric(f"{kind}/step")
            self._run.define_metric(f"{kind}/*", step_metric=f"{kind}/step")
        self._run.log({f"{kind}/step": step, **_named(kind, metrics)})

    def close(self) -> None:
        self._run.finish()


class Trackio:
    """https://huggingface.co/docs/trackio; local files, or the server that its variables name."""

    def __init__(self, options: Options) -> None:
        if options["offline"]:
            os.environ["TRACKIO_DIR"] = str(options["folder"])  # read by the import
        import trackio

        self._run = trackio.init(
            project=options["project"],
            name=f"{options['run_name']}-{_run_id(options)}",  # its runs are identified by name
            resume="allow",
            config=dict(options["config"]),
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        self._run.log(_named(kind, metrics), step=step)

    def close(self) -> None:
        self._run.finish()


class Mlflow:
    """https://mlflow.org; the tracking server is that of MLFLOW_TRACKING_URI."""

    def __init__(self, options: Options) -> None:
        if options["offline"]:
            os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
            os.environ["MLFLOW_TRACKING_URI"] = Path(options["folder"]).resolve().as_uri()
        from mlflow import MlflowClient

        self._client = MlflowClient()
        found = self._client.get_experiment_by_name(options["project"])
        experiment = found.experiment_id if found else self._client.create_experiment(options["project"])

        def create() -> str:
            run = self._client.create_run(experiment, run_name=options["run_name"])
            self._client.log_dict(run.info.run_id, dict(options["config"]), "config.json")
            return run.info.run_id

        self._run_id = _run_id(options, create)
        self._client.update_run(self._run_id, status="RUNNING")

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        from mlflow.entities import Metric

        now = int(time.time() * 1000)
        values = [Metric(name, value, now, step) for name, value in _named(kind, metrics).items()]
        self._client.log_batch(self._run_id, metrics=values)

    def close(self) -> None:
        self._client.set_terminated(self._run_id)


TRACKERS: Mapping[str, Callable[[Options], Tracker]] = {
    "wandb": Wandb,
    "trackio": Trackio,
    "mlflow": Mlflow,
}


def _named(kind: str, metrics: Mapping[str, float]) -> dict[str, float]:
    return {f"{kind}/{name}": value for name, value in metrics.items()}


def _run_id(options: Options, create: Callable[[], str] = lambda: uuid.uuid4().hex[:8]) -> str:
    """Return the recorded id of the remote run; call `create` and record its result on the first start."""
    path = Path(options["folder"]) / "run.json"
    if path.is_file():
        return json.loads(path.read_text())["id"]
    made = create()
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps({"id": made, "project": options["project"]}) + "\n")
    partial.replace(path)
    return made
