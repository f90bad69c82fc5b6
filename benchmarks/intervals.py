"""How often 95 % intervals of a resolve rate cover it, and how wide they are, over simulated evaluations.

python benchmarks/intervals.py               tasks x samples x distributions of the tasks' rates
python benchmarks/intervals.py --times 3000  more evaluations per cell

Beside Hone's interval: Student's t over the tasks, and Wilson's with the effective sample size of the
clustered variance (Miller 2024, arXiv:2411.00640). Each cell draws new tasks; the covered rate is the mean of
their distribution. An interval of Hone covers a rate exactly if the rate is within the quantiles that bound
it, which is computed for all evaluations of a cell at once; the first ones are compared with
`mean_interval`. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from hone.evaluate.statistics import mean_interval

Ints = npt.NDArray[np.int64]
Floats = npt.NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Floats]  # generator, tasks -> rates
TASKS = (5, 10, 20, 50, 100, 200)
SAMPLES = (1, 2, 4, 16, 64)
BETAS = ((0.1, 0.1), (0.5, 0.5), (1.0, 1.0), (8.0, 4.0), (0.1, 0.9), (0.05, 1.95), (2.0, 18.0))
EQUAL = (0.05, 0.3, 0.5)
WIDTHS = 40  # evaluations per cell whose widths are averaged
Z = 1.959963984540054
T = {5: 2.776445, 10: 2.262157, 20: 2.093024, 50: 2.009575, 100: 1.984217, 200: 1.971957}  # tasks -> quantile


def distributions() -> dict[str, tuple[Draw, float]]:
    """Return name -> (draws the tasks' rates, their mean)."""
    betas = {
        f"Beta({a:g}, {b:g})": ((lambda g, tasks, a=a, b=b: g.beta(a, b, tasks)), a / (a + b))
        for a, b in BETAS
    }
    return {**{f"all {p:g}": ((lambda g, tasks, p=p: np.full(tasks, p)), p) for p in EQUAL}, **betas}


def clustered_wilson(counts: tuple[int, ...], size: int) -> tuple[float, float]:
    rates = np.array(counts) / size
    rate, tasks = float(rates.mean()), len(counts)
    variance = float(np.sum((rates - rate) ** 2)) / tasks**2
    effective = rate * (1 - rate) / variance if variance > 0 else (tasks * size if 0 < rate < 1 else tasks)
    n = min(max(effective, tasks), tasks * size)
    centre = (rate + Z * Z / (2 * n)) / (1 + Z * Z / n)
    half = Z * math.sqrt(rate * (1 - rate) / n + Z * Z / (4 * n * n)) / (1 + Z * Z / n)
    return centre - half, centre + half


def student(counts: tuple[int, ...], size: int) -> tuple[float, float]:
    rates = np.array(counts) / size
    half = T[len(counts)] * float(rates.std(ddof=1)) / math.sqrt(len(counts))
    return float(rates.mean()) - half, float(rates.mean()) + half


METHODS = ("hone", "student", "wilson")


def below(values: Floats, histograms: Floats, bound: float, q: float) -> Floats:
    """Return P(weighted mean <= q) per row of `histograms` [times, values]; see `mean_interval`."""
    log_t = np.arange(-28.0, 28.0, 0.1)
    shifted = np.append(values, bound) - q
    products = np.exp(log_t)[:, None] * shifted / np.abs(shifted).max()
    counts = np.column_stack([histograms, np.ones(len(histograms))]).T
    sizes = np.exp(-0.5 * (np.log1p(products**2) @ counts))
    return 0.5 - 0.1 * np.sum(sizes * np.sin(np.arctan(products) @ counts), axis=0) / math.pi


def covered_by_hone(counts: Ints, size: int, mean: float) -> npt.NDArray[np.bool_]:
    values = np.arange(size + 1) / size
    histograms = np.stack([(counts == k).sum(axis=1) for k in range(size + 1)], axis=1).astype(float)
    not_above = below(values, histograms, 1.0, mean) <= 0.975
    not_below = below(-values, histograms, 0.0, -mean) <= 0.975
    return not_above & not_below


def cell(draw: Draw, mean: float, tasks: int, size: int, times: int) -> list[tuple[float, float]]:
    """Return for each method the share of the evaluations that it covers, and its mean width."""
    generator = np.random.default_rng((tasks, size))
    counts = np.array([generator.binomial(size, draw(generator, tasks)) for _ in range(times)])
    covered = covered_by_hone(counts, size, mean)
    own = [mean_interval(each / size) for each in counts[:WIDTHS]]
    if [low <= mean <= high for low, high in own] != covered[:WIDTHS].tolist():
        raise SystemExit(f"mean_interval and its definition disagree: {tasks} tasks, {size} samples")
    found = [(float(covered.mean()), float(np.mean([high - low for low, high in own])))]
    for method in (student, clustered_wilson):
        bounds = np.array([method(tuple(each), size) for each in counts.tolist()])
        share = np.mean((bounds[:, 0] <= mean) & (mean <= bounds[:, 1]))
        found.append((float(share), float(np.mean(bounds[:WIDTHS, 1] - bounds[:WIDTHS, 0]))))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=1000, help="evaluations per cell")
    times = parser.parse_args().times
    print(f"{'rates':<16}{'tasks':>6}{'samples':>8}" + "".join(f"{name:>16}" for name in METHODS))
    below = 0.95 - 3 * math.sqrt(0.95 * 0.05 / times)
    rows: list[list[tuple[float, float]]] = []
    for name, (draw, mean) in distributions().items():
        for tasks in TASKS:
            for size in SAMPLES:
                row = cell(draw, mean, tasks, size, times)
                rows.append(row)
                texts = [f"{covered:.3f} {width:.3f}" for covered, width in row]
                print(f"{name:<16}{tasks:>6}{size:>8}" + "".join(f"{text:>16}" for text in texts), flush=True)
    covered, widths = np.moveaxis(np.array(rows), 2, 0)
    ratios = widths[:, 0] / np.maximum(widths[:, 1], 1e-9)
    print(
        json.dumps(
            {
                "benchmark": "intervals",
                "cells": len(rows),
                "times": times,
                "lowest_coverage": dict(zip(METHODS, covered.min(axis=0).tolist(), strict=True)),
                "cells_below_95": dict(zip(METHODS, (covered < below).sum(axis=0).tolist(), strict=True)),
                "width_over_student_median": float(np.median(ratios)),
                "width_over_student_90_percent": float(np.quantile(ratios, 0.9)),
            }
        )
    )


if __name__ == "__main__":
    main()
