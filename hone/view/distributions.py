"""How turns, tokens, seconds and cost are distributed over the samples of an evaluation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from hone.evaluate import results
from hone.evaluate.settings import EvaluateSettings

BINS = 12  # of a distribution


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Counts of values in [low, high); the last bin is [low, high]."""

    low: float
    high: float
    resolved: int
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """Distribution of a quantity over the samples of an evaluation."""

    name: str
    unit: str  # of its values: "s" or ""
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


def distributions(rows: Sequence[results.Result], settings: EvaluateSettings) -> list[Distribution]:
    """Return the distributions of turns, tokens, seconds and cost, without infrastructure faults."""
    valid = [result for result in rows if not results.is_fault(result)]
    resolved = [result["resolved"] for result in valid]
    columns: list[tuple[str, str, list[float]]] = [
        ("Turns", "", [result["n_steps"] for result in valid]),
        ("Sampled tokens", "", [result["tokens"] for result in valid]),
        ("Prompt tokens", "", [result["prompt_tokens"] for result in valid]),
        ("Time", "s", [result["elapsed"] for result in valid]),
        ("Time in the engine", "s", [result["engine_s"] for result in valid]),
        ("Cost", "", [settings.cost(result["prompt_tokens"], result["tokens"]) for result in valid]),
    ]
    found = [distribution(name, unit, values, resolved) for name, unit, values in columns]
    return [each for each in found if each is not None]


def distribution(
    name: str, unit: str, values: Sequence[float], resolved: Sequence[bool]
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
        unit=unit,
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
