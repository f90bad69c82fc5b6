"""How often 95 % intervals of a resolve rate cover it, and how wide they are, over simulated evaluations.

python benchmarks/intervals.py               tasks x samples x distributions of the tasks' rates
python benchmarks/intervals.py --times 2000  more evaluations per cell

Beside Hone's interval: Student's t over the tasks, and Wilson's with the effective sample size of the
clustered variance (Miller 2024, arXiv:2411.00640). Each cell draws new tasks; the covered rate is the mean of
their distribution. Ends with one JSON line.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable
from functools import cache

import numpy as np
import numpy.typing as npt

from hone.evaluate.statistics import mean_interval

Ints = npt.NDArray[np.int64]
Draw = Callable[[np.random.Generator, int], npt.NDArray[np.float64]]  # generator, tasks -> rates
TASKS = (5, 10, 20, 50, 100, 200)
SAMPLES = (1, 2, 4, 16, 64)
BETAS = ((0.1, 0.1), (0.5, 0.5), (1.0, 1.0), (8.0, 4.0), (0.1, 0.9), (0.05, 1.95), (2.0, 18.0))
EQUAL = (0.05, 0.3, 0.5)
Z = 1.959963984540054
T = {5: 2.776445, 10: 2.262157, 20: 2.093024, 50: 2.009575, 100: 1.984217, 200: 1.971957}  # tasks -> quantile


def distributions() -> dict[str, tuple[Draw, float]]:
    """Return name -> (draws the tasks' rates, their mean)."""
    betas = {
        f"Beta({a:g}, {b:g})": ((lambda g, tasks, a=a, b=b: g.beta(a, b, tasks)), a / (a + b))
        for a, b in BETAS
    }
    return {**{f"all {p:g}": ((lambda g, tasks, p=p: np.full(tasks, p)), p) for p in EQUAL}, **betas}


@cache
def of_tasks(counts: tuple[int, ...], size: int) -> tuple[float, float]:
    """Return Hone's interval for the numbers of resolved samples of each task."""
    return mean_interval([count / size for count in counts])


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


METHODS = {"hone": of_tasks, "student": student, "wilson": clustered_wilson}


def cell(draw: Draw, mean: float, tasks: int, size: int, times: int) -> dict[str, tuple[float, float]]:
    """Return method -> (share of the intervals that cover the mean, their mean width)."""
    generator = np.random.default_rng((tasks, size))
    drawn = [np.sort(generator.binomial(size, draw(generator, tasks))).tolist() for _ in range(times)]
    found = {
        name: np.array([method(tuple(each), size) for each in drawn]) for name, method in METHODS.items()
    }
    return {
        name: (float(np.mean((b[:, 0] <= mean) & (mean <= b[:, 1]))), float(np.mean(b[:, 1] - b[:, 0])))
        for name, b in found.items()
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--times", type=int, default=200, help="evaluations per cell")
    times = parser.parse_args().times
    print(f"{'rates':<16}{'tasks':>6}{'samples':>8}" + "".join(f"{name:>16}" for name in METHODS))
    below = 0.95 - 3 * math.sqrt(0.95 * 0.05 / times)
    rows: list[tuple[tuple[float, float], ...]] = []
    for name, (draw, mean) in distributions().items():
        for tasks in TASKS:
            for size in SAMPLES:
                row = tuple(cell(draw, mean, tasks, size, times).values())
                rows.append(row)
                texts = [f"{covered:.3f} {width:.3f}" for covered, width in row]
                print(f"{name:<16}{tasks:>6}{size:>8}" + "".join(f"{text:>16}" for text in texts), flush=True)
        of_tasks.cache_clear()
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
