"""Render the report of an evaluation, and of a sweep over temperatures, as one page each.

The templates define how the charts look.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from hone.evaluate import results
from hone.evaluate.html import render
from hone.evaluate.rollout_page import ROLLOUT_PAGE
from hone.evaluate.settings import EvaluateSettings
from hone.outcomes import OUTCOME_RULES, Fault, Outcome

BINS = 12  # of a distribution
SHOWN = 20  # tasks in the lists of unsolved and of flaky tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Counts of values in [low, high); the last bin is [low, high]."""

    low: float
    high: float
    resolved: int
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Distribution of a quantity over samples."""

    name: str
    kind: str  # "count", "seconds" or "cost": the format of its values
    smallest: float
    median: float
    mean: float
    p90: float
    largest: float
    bins: tuple[Bin, ...]

    @property
    def highest(self) -> int:
        """Number of samples in the fullest bin."""
        return max(each.resolved + each.others for each in self.bins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A labelled point of a curve; both coordinates are in [0, 1]."""

    x: float
    y: float
    label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeCount:
    outcome: str
    fault: str  # "none", "policy" or "infrastructure"
    count: int
    share: float  # of all samples
    shade: int  # 0, 1, 2 ...: distinguishes the outcomes of one fault


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """The samples of one task, without infrastructure faults."""

    id: str
    resolved: int
    samples: int
    score: float  # largest fraction of the failing tests that a sample fixed
    outcomes: Mapping[str, int]
    pages: tuple[str, ...]  # of each sample, in order


def evaluation_page(
    rows: Sequence[results.Result], summary: Mapping[str, Any], settings: EvaluateSettings
) -> str:
    """Return the page of one evaluation, from its results and their summary."""
    tasks = task_results(rows)
    unsolved = sorted((t for t in tasks if t.resolved == 0), key=lambda t: (t.score, -t.samples, t.id))
    flaky = sorted(
        (t for t in tasks if 0 < t.resolved < t.samples),
        key=lambda t: (abs(2 * t.resolved - t.samples) / t.samples, t.id),
    )
    return render(
        "evaluation.html.jinja",
        summary=summary,
        outcomes=outcome_counts(summary["outcomes"]),
        curve=pass_curve(summary["pass_at"]),
        distributions=distributions(rows, settings),
        unsolved=unsolved,
        flaky=flaky,
        shown=SHOWN,
        most=max((task.samples for task in tasks), default=0),
        rows=sorted(rows, key=lambda result: (result["instance_id"], result["sample"])),
        faults={result["run_dir"] for result in rows if results.is_fault(result)},
        page=ROLLOUT_PAGE,
    )


def sweep_page(sweep: Mapping[str, Any]) -> str:
    """Return the page of a sweep; `sweep` is the content of `sweep.json`."""
    ks = sorted({int(k) for summary in sweep["evaluations"] for k in summary["pass_at"]})
    return render("sweep.html.jinja", sweep=sweep, ks=[str(k) for k in ks])


def outcome_counts(outcomes: Mapping[str, int]) -> list[OutcomeCount]:
    """Return the outcomes that occurred, in the order of `OUTCOME_RULES`."""
    total = sum(outcomes.values())
    shades: Counter[Fault] = Counter()
    counted: list[OutcomeCount] = []
    for outcome, rule in OUTCOME_RULES.items():
        if count := outcomes.get(outcome, 0):
            shade = shades[rule.fault]
            shades[rule.fault] += 1
            counted.append(
                OutcomeCount(
                    outcome=outcome.value,
                    fault=rule.fault.value,
                    count=count,
                    share=count / total,
                    shade=shade,
                )
            )
    return counted


def distributions(rows: Sequence[results.Result], settings: EvaluateSettings) -> list[Distribution]:
    """Return the distributions of turns, tokens, seconds and cost, without infrastructure faults."""
    valid = [result for result in rows if not results.is_fault(result)]
    resolved = [result["resolved"] for result in valid]
    columns: list[tuple[str, str, list[float]]] = [
        ("Turns", "count", [result["n_steps"] for result in valid]),
        ("Sampled tokens", "count", [result["tokens"] for result in valid]),
        ("Prompt tokens", "count", [result["prompt_tokens"] for result in valid]),
        ("Seconds", "seconds", [result["elapsed"] for result in valid]),
        ("Seconds in the engine", "seconds", [result["engine_s"] for result in valid]),
        ("Cost", "cost", [settings.cost(result["prompt_tokens"], result["tokens"]) for result in valid]),
    ]
    found = [distribution(name, kind, values, resolved) for name, kind, values in columns]
    return [each for each in found if each is not None]


def task_results(rows: Sequence[results.Result]) -> list[TaskResult]:
    by_task: dict[str, list[results.Result]] = {}
    for result in sorted(rows, key=lambda each: each["sample"]):
        if not results.is_fault(result):
            by_task.setdefault(result["instance_id"], []).append(result)
    return [
        TaskResult(
            id=name,
            resolved=sum(result["resolved"] for result in samples),
            samples=len(samples),
            score=max(result["score"] or 0.0 for result in samples),
            outcomes=Counter(str(Outcome(result["exit_status"])) for result in samples),
            pages=tuple(f"rollouts/{result['run_dir']}/{ROLLOUT_PAGE}" for result in samples),
        )
        for name, samples in by_task.items()
    ]


def distribution(
    name: str, kind: str, values: Sequence[float], resolved: Sequence[bool]
) -> Distribution | None:
    """Return the distribution of `values`, one per sample; None without values or when all are 0.

    Integers that span at most `BINS` values have a bin each; otherwise there are `BINS` bins of equal width.
    """
    if not values or not any(values):
        return None
    array, won = np.asarray(values, float), np.asarray(resolved, bool)
    low, high = float(array.min()), float(array.max())
    whole = bool((array == np.round(array)).all())
    if whole and high - low < BINS:
        edges = np.arange(low, high + 2)
    else:
        edges = (
            np.linspace(low, high, BINS + 1) if high > low else np.array([low, math.nextafter(low, math.inf)])
        )
    counts = [np.histogram(array[mask], edges)[0] for mask in (won, ~won)]
    return Distribution(
        name=name,
        kind=kind,
        smallest=low,
        median=float(np.median(array)),
        mean=float(array.mean()),
        p90=float(np.quantile(array, 0.9)),
        largest=high,
        bins=tuple(
            Bin(low=float(edges[i]), high=float(edges[i + 1]), resolved=int(a), others=int(b))
            for i, (a, b) in enumerate(zip(*counts, strict=True))
        ),
    )


def pass_curve(pass_at: Mapping[str, float]) -> list[Point]:
    """Return pass@k over log k; [] with fewer than two points."""
    ks = sorted(map(int, pass_at))
    if len(ks) < 2:
        return []
    return [Point(x=math.log(k) / math.log(ks[-1]), y=pass_at[str(k)], label=f"pass@{k}") for k in ks]
