"""The data of a report's charts; the templates define how the charts look."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BINS = 12


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
