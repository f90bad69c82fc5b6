"""`hone.read_run`: a run or an evaluation as tables."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from hone.evaluate import results
from hone.evaluate.runner import RESULTS
from hone.outcomes import Outcome
from hone.rollout.ledger import Entry, Ledger
from hone.rollout.store import Store
from hone.train.metrics import read_metrics
from hone.types import Trajectory
from hone.utils.errors import UsageError

CORE = pa.schema(
    [
        ("rollout_id", pa.string()),
        ("task_id", pa.string()),
        ("index", pa.int64()),  # in its group, or of the sample
        ("outcome", pa.string()),  # null: under way
        ("resolved", pa.bool_()),
        ("reward", pa.float64()),
        ("directory", pa.string()),  # for `RunTables.rollout`; null: nothing was stored
    ]
)
"""Columns of the rollouts of every kind of run; a training and an evaluation have more."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTables:
    """A run as tables of pyarrow: `.to_pandas()` makes a data frame of one, where pandas is installed."""

    run_dir: Path
    rollouts: pa.Table  # one row for each rollout, those of no step and those under way included
    steps: pa.Table  # one row for each training step: its number, Unix time and metrics
    validations: pa.Table  # one row for each validation of a training

    def rollout(self, directory: str) -> Trajectory:
        """Return the rollout of a row, by its `directory`. Raises StoreError."""
        return Store(self.run_dir / "rollouts").load(directory)


def read_run(run: str | Path) -> RunTables:
    """Read the directory of a training, also while it runs, or of an evaluation.

    The rollouts of a training have its ledger's columns (`step`, `disposition`, `sampled_version`, ...),
    those of an evaluation its results' (`turns`, `tokens`, `score`, `seconds`, ...); see `CORE` for the
    columns of both. `steps` and `validations` of an evaluation have no rows.

    Raises:
        UsageError: the directory holds neither.
        LedgerError, EvaluateError, StoreError: its files are damaged.

    Example:
        run = hone.read_run("runs/quickstart")
        frame = run.steps.to_pandas()
        frame.plot(x="step", y="resolve_rate")
    """
    path = Path(run)
    if (path / "ledger.sqlite").is_file():
        with Ledger.read(path) as ledger:
            rows = [_ledger_row(entry) for entry in ledger.entries()]
        columns = [*CORE.names, *_LEDGER]
    elif (path / RESULTS).is_file():
        rows = [_result_row(row) for row in results.read(path / RESULTS).values()]
        columns = [*CORE.names, *_RESULT.values()]
    elif names := Store(path / "rollouts").names():
        endings = Store(path / "rollouts").endings()
        rows = [_stored_row(name, *ending) for name, ending in zip(names, endings, strict=True)]
        columns = CORE.names
    else:
        sweep = sorted(folder.name for folder in path.glob("temperature-*"))
        raise UsageError(
            f"{path} holds a sweep of {len(sweep)} evaluations: read one of them, such as {path / sweep[0]}"
            if sweep
            else f"{path} holds no run: pass the directory of a training (ledger.sqlite) or of an evaluation "
            f"({RESULTS})"
        )
    return RunTables(
        run_dir=path,
        rollouts=_table(rows, columns),
        steps=_metrics(path, "train"),
        validations=_metrics(path, "validation"),
    )


_LEDGER = (
    *("group_id", "position", "step", "disposition", "reason", "sampled_version", "staleness"),
    *("dispatched_at", "ended_at"),
)
_RESULT = {  # field of a result -> column
    "score": "score",
    "n_steps": "turns",
    "prompt_tokens": "prompt_tokens",
    "tokens": "tokens",
    "elapsed": "seconds",
    "engine_s": "engine_seconds",
    "group": "group",
    "error": "error",
}


def _ledger_row(entry: Entry) -> dict[str, Any]:
    return {
        **{name: getattr(entry, name) for name in ("rollout_id", "task_id", "index", "reward", "directory")},
        **{name: getattr(entry, name) for name in _LEDGER},
        "outcome": _text(entry.outcome),
        "disposition": _text(entry.disposition),
        "resolved": None if entry.outcome is None else entry.outcome is Outcome.RESOLVED,
    }


def _result_row(row: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "rollout_id": f"{row['instance_id']}-{row['sample']}",
        "task_id": row["instance_id"],
        "index": row["sample"],
        "outcome": row["exit_status"],
        "resolved": row["resolved"],
        "reward": row.get("reward"),
        "directory": row["run_dir"],
        **{column: row.get(field) for field, column in _RESULT.items()},
    }


def _stored_row(name: str, outcome: Outcome, reward: float | None) -> dict[str, Any]:
    resolved = outcome is Outcome.RESOLVED
    return {"outcome": outcome.value, "resolved": resolved, "reward": reward, "directory": name}


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _table(  # pyright: ignore[reportUnknownParameterType] - pyarrow publishes partial types
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str]
) -> pa.Table:
    """Return a table of these columns; a column of `CORE` has its type even without a value."""
    values = {
        name: pa.array(
            [row.get(name) for row in rows], type=CORE.field(name).type if name in CORE.names else None
        )
        for name in columns
    }
    return pa.table(values)


def _metrics(run: Path, kind: str) -> pa.Table:  # pyright: ignore[reportUnknownParameterType]
    """Return one series of metrics.jsonl; a metric that a step lacks is null."""
    path = run / "metrics.jsonl"
    records = read_metrics(run, kind) if path.is_file() else []
    names = dict.fromkeys(name for record in records for name in record if name != "kind")
    return _table(records, list(names)) if names else pa.table({"step": pa.array([], pa.int64())})
