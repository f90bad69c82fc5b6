"""Compare two evaluations: changed tasks, statistical significance, and other differences."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.evaluate import results
from hone.evaluate.errors import EvaluateError
from hone.evaluate.runner import RESULTS, SUMMARY, SWEEP
from hone.evaluate.statistics import Comparison, Rate, compare, resolve_rate
from hone.outcomes import OUTCOME_RULES

SIGNIFICANT = 0.05
FIGURES = {  # column of results.jsonl -> name of its mean
    "n_steps": "turns",
    "tokens": "sampled tokens",
    "prompt_tokens": "prompt tokens",
    "elapsed": "seconds",
    "engine_s": "seconds in the engine",
}
_MISSING = "not set"


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """A task that one run resolves more often than the other."""

    id: str
    first: tuple[int, int]  # resolved, samples
    second: tuple[int, int]
    rollouts: tuple[tuple[str, ...], tuple[str, ...]]  # directories of the samples of each run, in order

    @property
    def gain(self) -> float:
        """Resolve rate of the second run minus that of the first, in [-1, 1]."""
        return self.second[0] / self.second[1] - self.first[0] / self.first[1]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """The output of `hone compare`. Pairs are (first, second)."""

    names: tuple[str, str]  # the directories
    models: tuple[str, str]
    first: Rate
    second: Rate
    paired: Comparison
    meaning: str  # the p-value explained in words
    changed: tuple[Changed, ...]  # greatest gain of the second run first
    unpaired: tuple[tuple[str, ...], tuple[str, ...]]  # tasks of only one run
    outcomes: Mapping[str, tuple[int, int]]
    figures: Mapping[str, tuple[float, float]]  # means per sample; cost where prices were set
    settings: Mapping[str, tuple[Any, Any]]  # settings that differ, without those of `ignored`


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    rows: Mapping[results.Key, results.Result]
    summary: Mapping[str, Any]  # {}: the evaluation is unfinished
    samples: Mapping[str, list[bool]]


def compare_runs(first: Path, second: Path, *, ignored: Collection[str] = ()) -> RunComparison:
    """Return the comparison of two evaluations, paired by task.

    Args:
        ignored: settings, and groups of settings, whose differences are not reported.

    Raises EvaluateError when one evaluation is missing, or when they share no task.
    """
    runs = (_read(first), _read(second))
    one, two = (run.samples for run in runs)
    paired = compare(one, two)
    if not paired.tasks:
        raise EvaluateError(f"{first} and {second} share no task: compare evaluations of the same task set")
    return RunComparison(
        names=(str(first), str(second)),
        models=(str(runs[0].summary.get("model", "")), str(runs[1].summary.get("model", ""))),
        first=resolve_rate(one),
        second=resolve_rate(two),
        paired=paired,
        meaning=meaning(paired),
        changed=_changed(*runs),
        unpaired=(tuple(sorted(set(one) - set(two))), tuple(sorted(set(two) - set(one)))),
        outcomes=_outcomes(*runs),
        figures=_figures(*runs),
        settings=_settings(*runs, ignored),
    )


def meaning(paired: Comparison) -> str:
    """Return the meaning of the p-value in one or two sentences."""
    first, second = paired.first_better, paired.second_better
    if first + second == 0:
        return "Both runs resolve every task equally often: nothing tells them apart."
    chance = f"{paired.p_value:.2g}" if paired.p_value >= 1e-4 else "less than 0.0001"
    odds = (
        f"If neither run were better, the {first + second} tasks that changed would split {first} to "
        f"{second} or more unevenly with probability {chance}."
    )
    if paired.p_value >= SIGNIFICANT:
        return f"{odds} This does not show that either is better."
    return f"{odds} That is evidence that the {'first' if first > second else 'second'} run is better."


def _read(run: Path) -> _Run:
    if (run / SWEEP).is_file():
        inner = sorted(path.name for path in run.glob("temperature-*"))
        example = f", such as {run / inner[0]}" if inner else ""
        raise EvaluateError(f"{run} is a sweep over temperatures: pass one of its evaluations{example}")
    rows = results.read(run / RESULTS)
    if not rows:
        raise EvaluateError(f"{run} holds no evaluation (no {RESULTS} in it): pass the output of `hone eval`")
    path = run / SUMMARY
    try:
        summary = json.loads(path.read_bytes()) if path.is_file() else {}
    except ValueError as error:
        raise EvaluateError(f"{path} is not JSON ({error}): run the evaluation again to write it") from None
    return _Run(rows=rows, summary=summary, samples=results.samples_by_task(rows.values()))


def _changed(first: _Run, second: _Run) -> tuple[Changed, ...]:
    one, two = first.samples, second.samples
    directories = (_directories(first), _directories(second))
    pairs = [
        Changed(
            id=task,
            first=(sum(one[task]), len(one[task])),
            second=(sum(two[task]), len(two[task])),
            rollouts=(tuple(directories[0][task]), tuple(directories[1][task])),
        )
        for task in one
        if task in two
    ]
    return tuple(sorted((pair for pair in pairs if pair.gain), key=lambda pair: (-pair.gain, pair.id)))


def _directories(run: _Run) -> dict[str, list[str]]:
    """Return task -> directories of its samples, without infrastructure faults."""
    found: dict[str, list[str]] = {}
    for (task, _), row in sorted(run.rows.items()):
        if not results.is_fault(row):
            found.setdefault(task, []).append(row["run_dir"])
    return found


def _outcomes(first: _Run, second: _Run) -> dict[str, tuple[int, int]]:
    one, two = (Counter(row["exit_status"] for row in run.rows.values()) for run in (first, second))
    return {o.value: (one[o], two[o]) for o in OUTCOME_RULES if one[o] or two[o]}


def _figures(first: _Run, second: _Run) -> dict[str, tuple[float, float]]:
    figures: dict[str, tuple[float, float]] = {}
    for column, name in FIGURES.items():
        sides = [_mean(run, column) for run in (first, second)]
        if sides[0] is not None and sides[1] is not None and any(sides):
            figures[name] = (sides[0], sides[1])
    costs = [run.summary.get("cost", 0.0) / max(1, run.summary.get("total", 0)) for run in (first, second)]
    if any(costs):
        figures["cost"] = (costs[0], costs[1])
    return figures


def _mean(run: _Run, column: str) -> float | None:
    """Return the mean over the samples without a fault; None where results lack the column."""
    values = [row.get(column) for row in run.rows.values() if not results.is_fault(row)]
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known and len(known) == len(values) else None


def _settings(first: _Run, second: _Run, ignored: Collection[str]) -> dict[str, tuple[Any, Any]]:
    if not (first.summary and second.summary):
        return {}
    one, two = (dict(_flat(run.summary["args"])) for run in (first, second))
    return {
        name: (one.get(name, _MISSING), two.get(name, _MISSING))
        for name in sorted({*one, *two})
        if one.get(name, _MISSING) != two.get(name, _MISSING)
        and not any(name == other or name.startswith(f"{other}.") for other in ignored)
    }


def _flat(values: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", value
