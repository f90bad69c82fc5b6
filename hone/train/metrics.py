"""Metrics of a run: one JSON line per record, and TensorBoard files.

`metrics.jsonl` is append-only. A resumed run may report a step twice; the later record counts.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
from __future__ import annotations

import json
import math
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from hone.utils.jsonl import drop_partial_line, read_json_lines


class MetricsWriter:
    """Appends to `metrics.jsonl` and `tensorboard/` in the run directory; flushed after every record."""

    def __init__(self, run_dir: Path, *, kind: str = "train", tensorboard: bool = True) -> None:
        """`kind` is the name of the series; supervised and reinforcement learning share a file."""
        run_dir.mkdir(parents=True, exist_ok=True)
        self._kind = kind
        path = run_dir / "metrics.jsonl"
        drop_partial_line(path)
        self._file = path.open("a")
        self._board: Any = None
        if tensorboard:
            from torch.utils.tensorboard.writer import SummaryWriter  # slow to import

            self._board = SummaryWriter(str(run_dir / "tensorboard"))

    def write(self, step: int, metrics: Mapping[str, float], *, kind: str | None = None) -> None:
        """Record `metrics` of `step` in the series `kind`, by default the writer's own.

        A value that is not finite becomes null in the JSON.
        """
        kind = kind or self._kind
        record = {"kind": kind, "step": step, "time": time.time()}
        record |= {k: v if math.isfinite(v) else None for k, v in metrics.items()}
        self._file.write(json.dumps(record) + "\n")
        self._file.flush()
        if self._board is not None:
            for name, value in metrics.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)
            self._board.flush()

    def close(self) -> None:
        self._file.close()
        if self._board is not None:
            self._board.close()

    def __enter__(self) -> MetricsWriter:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def read_metrics(run_dir: Path, kind: str = "train") -> list[dict[str, Any]]:
    """Return the last record of each step of one series, in order of step, without a partial line."""
    records = (record for _, record in read_json_lines(run_dir / "metrics.jsonl"))
    by_step = {record["step"]: record for record in records if record["kind"] == kind}
    return [by_step[step] for step in sorted(by_step)]
