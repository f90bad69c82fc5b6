"""Metrics of a run: one JSON line per record, TensorBoard files, and experiment trackers.

`metrics.jsonl` is append-only. A resumed run may report a step twice; the later record counts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from hone.utils.jsonl import drop_partial_line, read_json_lines


class MetricsSink(Protocol):
    """Receives the metrics of a run; calls come from one thread."""

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        """Add the metrics of `step` to the series `kind`; a resumed run may write a step twice."""
        ...

    def close(self, *, failed: bool) -> None:
        """Finish; `failed`: after an error or Ctrl-C, so that only a few seconds are left."""
        ...


class JsonlSink:
    """Appends to `metrics.jsonl`. A value that is not finite becomes null."""

    def __init__(self, run_dir: Path) -> None:
        path = run_dir / "metrics.jsonl"
        drop_partial_line(path)
        self._file = path.open("a")

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        record = {"kind": kind, "step": step, "time": time.time()}
        record |= {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()

    def close(self, *, failed: bool = False) -> None:
        self._file.close()


class TensorBoardSink:
    """Writes files that TensorBoard reads, in `tensorboard/`."""

    def __init__(self, run_dir: Path) -> None:
        from torch.utils.tensorboard.writer import SummaryWriter  # slow to import

        self._board: Any = SummaryWriter(str(run_dir / "tensorboard"))

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        for name, value in metrics.items():
            self._board.add_scalar(f"{kind}/{name}", value, step)
        self._board.flush()

    def close(self, *, failed: bool = False) -> None:
        self._board.close()


class MetricsWriter:
    """Writes the metrics of a run to every sink: `metrics.jsonl`, TensorBoard files and experiment trackers.

    `metrics.jsonl` is written first and flushed, so readers see a record at once.
    """

    def __init__(
        self,
        run_dir: Path,
        *,
        kind: str = "train",
        tensorboard: bool = True,
        sinks: Sequence[MetricsSink] = (),
    ) -> None:
        """`kind` is the default series; supervised and reinforcement learning share a file."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._kind = kind
        boards = [TensorBoardSink(run_dir)] if tensorboard else []
        self._sinks: list[MetricsSink] = [JsonlSink(run_dir), *boards, *sinks]

    def write(self, step: int, metrics: Mapping[str, float], *, kind: str | None = None) -> None:
        """Record `metrics` of `step` in the series `kind`, by default the writer's own."""
        for sink in self._sinks:
            sink.write(kind or self._kind, step, metrics)

    def close(self, *, failed: bool = False) -> None:
        for sink in self._sinks:
            sink.close(failed=failed)

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(failed=kind is not None)


def read_metrics(run_dir: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Return the last record of each step of one series, in order of step, without a partial line."""
    records = (record for _, record in read_json_lines(run_dir / "metrics.jsonl"))
    by_step = {record["step"]: record for record in records if record["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]
