"""Statistics of an evaluation, as pure functions.

Samples of one task are not independent, so tasks are the unit: an interval is that of a mean over tasks, and
comparisons pair tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

TAIL = 0.025  # probability that an interval leaves on each side
_LOG_STEP = 0.1  # of the integral over log t in `_probability_below`; half of it changes no digit of 1e-9
_LOG_T = np.arange(-28.0, 28.0, _LOG_STEP)
_EXACT = 1e-10  # error of the probability that a bound leaves beyond it

Float64 = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A resolve rate and its 95 % interval."""

    resolved: int
    n: int  # samples
    rate: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """A mean over tasks and its 95 % interval."""

    mean: float
    low: float
    high: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Two runs compared task by task."""

    tasks: int
    first_better: int  # tasks that the first run resolves more often
    second_better: int
    ties: int
    p_value: float  # two-sided
    gain: Mean  # resolve rate of the second run minus that of the first, over the common tasks


def mean_interval(
    values: Sequence[float] | Float64,
    *,
    weights: Sequence[float] | Float64 | None = None,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> tuple[float, float]:
    """Return the 95 % interval of the mean of independent values that lie within `bounds`.

    Gaffke's bounds (Gaffke 2005, Mathematical Methods of Statistics 14, 451-467; Learned-Miller and Thomas
    2019, arXiv:1905.06208): for the upper one, add the upper bound to the values, weigh all with a
    uniform Dirichlet distribution, and take the 97.5 % quantile of the weighted mean. Of values that are 0
    or 1, this is the exact interval of Clopper and Pearson (1934). It assumes nothing about the distribution
    between the bounds: few tasks of very different difficulty are covered like many equal ones.

    Args:
        weights: of the values in the mean, above 0; default: equal.

    Example: 81 ones among 263 -> (0.2527, 0.3677). No values: the bounds.
    """
    every = np.asarray(values, np.float64)
    if not len(every):
        return bounds
    weighed = np.ones_like(every) if weights is None else np.asarray(weights, np.float64)
    low = -_upper_bound(-every, weighed, -bounds[0])
    return low, _upper_bound(every, weighed, bounds[1])


def _upper_bound(values: Float64, weights: Float64, largest: float) -> float:
    """Return the q below which the weighted mean lies with probability 1 - TAIL."""
    mean = float(weights @ values / weights.sum())
    pairs, counts = np.unique(
        np.column_stack([np.append(values, largest), np.append(weights, weights.mean())]),
        axis=0,
        return_counts=True,
    )
    below, above = mean, largest
    missing, excess, last = TAIL - 0.5, TAIL, 0.0  # near enough to begin with
    while above - below > _EXACT:  # the false position method, with the halving of Illinois
        middle = above - excess * (above - below) / (excess - missing)
        found = _probability_below((pairs[:, 0] - middle) * pairs[:, 1], counts) - (1 - TAIL)
        if abs(found) < _EXACT:
            return middle
        if found < 0:
            below, missing = middle, found
            excess /= 2 if last < 0 else 1
        else:
            above, excess = middle, found
            missing /= 2 if last > 0 else 1
        last = found
    return above


def _probability_below(coefficients: Float64, counts: npt.NDArray[Any]) -> float:
    """Return P(sum of c E <= 0) for independent, standard exponential E; each c occurs `counts` times.

    By inversion of the characteristic function (Imhof 1961, Biometrika 48, 419-426, equation 3.2, with two
    degrees of freedom each). Over log t the integrand is smooth and dies out on both sides, so that the
    trapezoidal rule converges exponentially.
    """
    scaled = coefficients / max(np.abs(coefficients).max(), 1e-300)
    products = np.exp(_LOG_T)[:, None] * scaled
    angle = np.arctan(products) @ counts
    size = np.exp(-0.5 * (np.log1p(products**2) @ counts))
    return 0.5 - float(_LOG_STEP * np.sum(size * np.sin(angle))) / math.pi


def resolve_rate(samples: Mapping[str, Sequence[bool]]) -> Rate:
    """Return the rate over all samples (task -> resolved, one per sample).

    Its interval is that of the mean of the tasks' rates, each weighed by its number of samples.
    """
    tasks = [task for task in samples.values() if task]
    sizes = [len(task) for task in tasks]
    n, resolved = sum(sizes), sum(sum(task) for task in tasks)
    low, high = mean_interval([_rate(task) for task in tasks], weights=sizes)
    return Rate(resolved=resolved, n=n, rate=resolved / n if n else 0.0, low=low, high=high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `correct` of n samples: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374, equation 1. Raises ValueError unless 1 <= k <= n, 0 <= correct <= n.
    Example: n = 4, correct = 2, k = 2 -> 5/6.
    """
    if not (1 <= k <= n and 0 <= correct <= n):
        raise ValueError(f"pass@{k} needs at least {k} samples and at most {n} right, got {n} and {correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(samples: Mapping[str, Sequence[bool]], k: int) -> Mean | None:
    """Return pass@k averaged over the tasks with at least k samples; None without such tasks."""
    estimates = [pass_at_k(len(task), sum(task), k) for task in samples.values() if len(task) >= k]
    return _mean(estimates, (0.0, 1.0)) if estimates else None


def _mean(values: Sequence[float], bounds: tuple[float, float]) -> Mean:
    low, high = mean_interval(values, bounds=bounds)
    return Mean(mean=sum(values) / len(values) if values else 0.0, low=low, high=high)


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: discordant pairs against a fair coin.

    Example: 1 against 9 -> 22/1024. No discordant pair: 1.
    """
    n = first_only + second_only
    tail = sum(math.comb(n, i) for i in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**n)


def compare(first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]]) -> Comparison:
    """Return the paired comparison of two runs by task.

    With one sample per task the p-value is McNemar's exact test's; with more, that of the exact sign test on
    the tasks' rates. Only tasks with samples in both runs count.
    """
    tasks = [task for task in first if first[task] and second.get(task)]
    differences = [
        sum(first[task]) * len(second[task]) - sum(second[task]) * len(first[task]) for task in tasks
    ]
    first_better, second_better = sum(d > 0 for d in differences), sum(d < 0 for d in differences)
    return Comparison(
        tasks=len(tasks),
        first_better=first_better,
        second_better=second_better,
        ties=len(tasks) - first_better - second_better,
        p_value=mcnemar(first_better, second_better),
        gain=_mean([_rate(second[task]) - _rate(first[task]) for task in tasks], (-1.0, 1.0)),
    )


def _rate(samples: Sequence[bool]) -> float:
    return sum(samples) / len(samples)
