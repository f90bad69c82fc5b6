"""Find runs and evaluations below directories, and describe each in one line."""

from __future__ import annotations

import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.view.reader import LEDGER, METRICS, RESULTS, SUMMARY, RunReader
from hone.view.records import OutcomeSteps, RunKind, RunLine, RunState

_DEPTH = 8  # of folders below a given directory
_INSIDE = {"rollouts", "checkpoints", "workspaces", "tensorboard", "tokens", "state"}  # of a run: no runs


def find_runs(directories: Iterable[Path]) -> dict[str, Path]:
    """Return name -> directory of every training, evaluation and store at or below the directories.

    A run below a given directory is named by its path from there, "arena-GRPO-0"; a given run by its own
    name. The names stay the same when runs are added.
    """
    found: dict[str, Path] = {}
    for given in directories:
        for path in _runs_below(given, _DEPTH):
            if path in found.values():
                continue
            inside = path.relative_to(given).parts or (path.resolve().name,)
            stem = re.sub(r"[^\w.-]", "_", "-".join(inside))
            name = next(n for n in _numbered(stem) if n not in found)
            found[name] = path
    return found


def is_run(path: Path) -> bool:
    """Return whether a directory holds a training, an evaluation or stored rollouts."""
    if any((path / name).is_file() for name in (LEDGER, RESULTS, METRICS)):
        return True
    return (path / "rollouts").is_dir() and path.name not in _INSIDE


def _runs_below(path: Path, depth: int) -> Iterator[Path]:
    if is_run(path):
        yield path
    if depth == 0:
        return
    try:
        with os.scandir(path) as inside:
            names = sorted(e.name for e in inside if e.is_dir(follow_symlinks=False))
    except OSError:
        return
    for name in names:
        if name not in _INSIDE and not name.startswith("."):
            yield from _runs_below(path / name, depth - 1)


def _numbered(stem: str) -> Iterator[str]:
    yield stem
    number = 2
    while True:
        yield f"{stem}-{number}"
        number += 1


def run_line(reader: RunReader) -> RunLine:
    """Return one line about a run. Raises LedgerError or ValueError for a damaged file."""
    kind = reader.kind
    if kind is RunKind.TRAINING:
        return _training_line(reader) if reader.has_ledger else _fit_line(reader)
    if kind is RunKind.EVALUATION:
        return _evaluation_line(reader)
    return RunLine(
        name=reader.name,
        directory=str(reader.directory),
        kind=kind,
        state=RunState.RUNNING if reader.is_running else RunState.FINISHED,
        step=None,
        steps=None,
        rollouts=len(reader.names()),
        resolve_rate=None,
        updated_at=_modified(reader.directory / "rollouts"),
    )


def _training_line(reader: RunReader) -> RunLine:
    settings, last = reader.settings(), reader.last_step
    steps = None if settings is None else settings.train.steps
    done = 0 if last is None else last + 1
    metrics = reader.metrics()
    return RunLine(
        name=reader.name,
        directory=str(reader.directory),
        kind=RunKind.TRAINING,
        state=_state(reader, finished=steps is not None and done >= steps),
        step=done,
        steps=steps,
        rollouts=len(reader.entries()),
        resolve_rate=metrics[-1].get("resolve_rate") if metrics else None,
        updated_at=_modified(*(reader.directory / name for name in (LEDGER, f"{LEDGER}-wal", METRICS))),
    )


def _fit_line(reader: RunReader) -> RunLine:
    """Return the line of SFT or of a replay, which ends with a checkpoint of its last step."""
    metrics = reader.metrics()
    last = metrics[-1]["step"] if metrics else -1
    return RunLine(
        name=reader.name,
        directory=str(reader.directory),
        kind=RunKind.TRAINING,
        state=_state(reader, finished=(reader.directory / "checkpoints" / f"step-{last:06d}").is_dir()),
        step=last + 1,
        steps=None,
        rollouts=0,
        resolve_rate=None,
        updated_at=_modified(reader.directory / METRICS),
    )


def _evaluation_line(reader: RunReader) -> RunLine:
    rows = [r for r in reader.results() if OUTCOME_RULES[Outcome(r["exit_status"])].in_baseline]
    return RunLine(
        name=reader.name,
        directory=str(reader.directory),
        kind=RunKind.EVALUATION,
        state=_state(reader, finished=(reader.directory / SUMMARY).is_file()),
        step=None,
        steps=None,
        rollouts=len(reader.results()),
        resolve_rate=sum(row["resolved"] for row in rows) / len(rows) if rows else None,
        updated_at=_modified(*(reader.directory / name for name in (RESULTS, SUMMARY))),
    )


def _state(reader: RunReader, *, finished: bool) -> RunState:
    if reader.is_running:
        return RunState.RUNNING
    return RunState.FINISHED if finished else RunState.STOPPED


def _modified(*files: Path) -> float | None:
    times = [file.stat().st_mtime for file in files if file.exists()]
    return max(times, default=None)


def read_summary(reader: RunReader) -> dict[str, Any]:
    """Return the summary of an evaluation; {} before it has ended."""
    path = reader.directory / SUMMARY
    return json.loads(path.read_bytes()) if path.is_file() else {}


def outcome_totals(outcomes: Iterable[str]) -> tuple[OutcomeSteps, ...]:
    """Return how often each outcome occurs, where no step consumed the rollouts."""
    return tuple(
        OutcomeSteps(outcome=name, fault=OUTCOME_RULES[Outcome(name)].fault.value, counts={}, total=total)
        for name, total in count_outcomes(outcomes).items()
    )


def count_outcomes(outcomes: Iterable[str]) -> dict[str, int]:
    """Return how often each outcome occurs, in the order of `OUTCOME_RULES`."""
    counts = Counter(outcomes)
    return {outcome.value: counts[outcome.value] for outcome in OUTCOME_RULES if counts[outcome.value]}
