"""The figures behind a report's charts, as plain records; how they look is the template's business."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

BINS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Bin:
    """Values in [low, high), of the last bin in [low, high]."""

    low: float
    high: float
    resolved: int
    others: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Distribution:
    """How a quantity is spread over samples."""

    name: str
    kind: str  # "count", "seconds" or "cost": how its values are written
    smallest: float
    median: float
    mean: float
    p90: float
    largest: float
    bins: tuple[Bin, ...]

    @property
    def highest(self) -> int:
        """Of all bins, the most samples in one."""
        return max(each.resolved + each.others for each in self.bins)


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """A point of a curve, both coordinates in [0, 1], and what is written beside it."""

    x: float
    y: float
    label: str


def distribution(
    name: str, kind: str, values: Sequence[float], resolved: Sequence[bool]
) -> Distribution | None:
    """Of the values, each of a sample that was resolved or not; None when there is none, or all are 0.

    Whole numbers that span no more than `BINS` have a bin each; else there are `BINS` equally wide ones.
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
    """pass@k over the logarithm of k; [] with fewer than two points."""
    ks = sorted(map(int, pass_at))
    if len(ks) < 2:
        return []
    return [Point(x=math.log(k) / math.log(ks[-1]), y=pass_at[str(k)], label=f"pass@{k}") for k in ks]
