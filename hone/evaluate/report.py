"""Render the report of an evaluation, and of a sweep over temperatures, as one page each."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.evaluate import charts, results
from hone.evaluate.html import render
from hone.evaluate.rollout_page import ROLLOUT_PAGE
from hone.evaluate.settings import EvaluateSettings
from hone.outcomes import OUTCOME_RULES, Fault, Outcome

SHOWN = 20  # tasks in the lists of unsolved and of flaky tasks


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
        curve=charts.pass_curve(summary["pass_at"]),
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


def distributions(rows: Sequence[results.Result], settings: EvaluateSettings) -> list[charts.Distribution]:
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
    found = [charts.distribution(name, kind, values, resolved) for name, kind, values in columns]
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
