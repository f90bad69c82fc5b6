"""What a training did, step by step: the learning curve, staleness, and what it waits for."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from hone.evaluate.statistics import mean_interval, resolve_rate
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import Entry
from hone.view.records import OutcomeSteps, Point

PARTS = ("engine", "sandbox", "trainer")


def staleness(entries: Iterable[Entry]) -> dict[str, int]:
    """Return the number of consumed rollouts by their staleness, in steps, as text for JSON."""
    ages = Counter(entry.staleness for entry in entries if entry.staleness is not None)
    return {str(age): ages[age] for age in sorted(ages)}


def busy(metrics: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the mean share of time that engine, sandboxes and trainer were busy; {}: no step yet."""
    shares = [
        {part: record[f"busy/{part}"] for part in PARTS} for record in metrics if "busy/engine" in record
    ]
    if not shares:
        return {}
    return {part: round(sum(share[part] for share in shares) / len(shares), 3) for part in shares[0]}


def bottleneck(shares: Mapping[str, float], metrics: Sequence[Mapping[str, Any]]) -> str:
    """Return what a run waits for, in one line: "busiest: engine 97 %; trainer 34 %; sandbox 18 %; ..."."""
    parts = sorted(shares, key=lambda part: -shares[part])
    parked = mean_of(metrics, "parked")
    parking = f"; {100 * parked:.0f} % of the rollouts were parked" if parked else ""
    waited = any("wait_s" in record for record in metrics)
    wait = f"; a step waited {mean_of(metrics, 'wait_s'):.1f} s for its batch" if waited else ""
    return "busiest: " + "; ".join(f"{part} {100 * shares[part]:.0f} %" for part in parts) + parking + wait


def mean_of(metrics: Iterable[Mapping[str, Any]], name: str) -> float:
    """Return the mean of a metric over the steps that have it; 0 if none has."""
    values = [record[name] for record in metrics if name in record]
    return sum(values) / len(values) if values else 0.0


def curve(entries: Sequence[Entry], metrics: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return one record per step with rewards, from the ledger and the metrics."""
    measured = {record["step"]: record for record in metrics}
    return [
        {
            **measured.get(step, {}),
            "step": step,
            "rollouts": len(ended),
            "reward": sum(entry.reward or 0.0 for entry in ended) / len(ended),
            "resolve_rate": measured.get(step, {}).get(
                "resolve_rate", sum(entry.outcome is Outcome.RESOLVED for entry in ended) / len(ended)
            ),
        }
        for step, ended in sorted(in_baseline(entries).items())
    ]


def in_baseline(entries: Iterable[Entry]) -> dict[int, list[Entry]]:
    """Return step -> the rollouts that count in its baseline."""
    by_step: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if (
            entry.step is not None
            and entry.outcome is not None
            and OUTCOME_RULES[entry.outcome].in_baseline
            and entry.reward is not None
        ):
            by_step[entry.step].append(entry)
    return by_step


def rate_point(step: int, ended: Iterable[Entry], is_resolved: Callable[[Entry], bool]) -> Point:
    """Return the resolve rate of a step with its 95 % interval; tasks are the independent units."""
    samples: dict[str, list[bool]] = {}
    for entry in ended:
        samples.setdefault(entry.task_id, []).append(is_resolved(entry))
    rate = resolve_rate(samples)
    return Point(step=step, value=rate.rate, low=rate.low, high=rate.high)


def reward_point(step: int, ended: Sequence[Entry], bounds: tuple[float, float]) -> Point:
    """Return the mean reward of a step with its 95 % interval; `bounds`: of the rewards."""
    by_task: dict[str, list[float]] = {}
    for entry in ended:
        by_task.setdefault(entry.task_id, []).append(entry.reward or 0.0)
    means = [sum(rewards) / len(rewards) for rewards in by_task.values()]
    sizes = [len(rewards) for rewards in by_task.values()]
    value = sum(m * n for m, n in zip(means, sizes, strict=True)) / sum(sizes)
    if bounds[0] == bounds[1]:  # every reward of the run is equal
        return Point(step=step, value=value)
    low, high = mean_interval(means, weights=sizes, bounds=bounds)
    return Point(step=step, value=value, low=low, high=high)


def outcome_steps(entries: Iterable[Entry]) -> tuple[OutcomeSteps, ...]:
    """Return how many rollouts of each step ended in each outcome, in the order of `OUTCOME_RULES`."""
    counts: dict[Outcome, Counter[int]] = defaultdict(Counter)
    totals: Counter[Outcome] = Counter()
    for entry in entries:
        if entry.outcome is not None:
            totals[entry.outcome] += 1
            if entry.step is not None:
                counts[entry.outcome][entry.step] += 1
    return tuple(
        OutcomeSteps(
            outcome=outcome.value,
            fault=rule.fault.value,
            counts=dict(sorted(counts[outcome].items())),
            total=totals[outcome],
        )
        for outcome, rule in OUTCOME_RULES.items()
        if totals[outcome]
    )
