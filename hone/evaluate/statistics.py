"""Statistics of an evaluation, as pure functions.

Samples of one task are not independent, so intervals are clustered by task and comparisons pair tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

Z_95 = 1.959963984540054  # standard normal quantile at 0.975


@dataclass(frozen=True, slots=True, kw_only=True)
class Rate:
    """A resolve rate and its 95 % interval."""

    resolved: int
    n: int  # samples
    rate: float
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


def wilson(rate: float, n: float) -> tuple[float, float]:
    """Return Wilson's score interval of a proportion (Wilson 1927); `n` may be an effective sample size.

    Example: 81 of 263 -> (0.2553, 0.3662). No samples: (0, 1).
    """
    if n <= 0:
        return 0.0, 1.0
    z = Z_95
    scale = 1 + z * z / n
    centre = (rate + z * z / (2 * n)) / scale
    half = z * math.sqrt(rate * (1 - rate) / n + z * z / (4 * n * n)) / scale
    # rounding must not push a bound past the rate itself, as at rate 0
    return min(rate, max(0.0, centre - half)), max(rate, min(1.0, centre + half))


def resolve_rate(samples: Mapping[str, Sequence[bool]]) -> Rate:
    """Return the rate over all samples (task -> resolved, one per sample), interval clustered by task.

    With one sample per task it is Wilson's interval. With more, n is replaced by the effective sample size
    p (1 - p) / SE^2, where SE^2 = sum over tasks of (sum over samples of (x - p))^2 / n^2 is the clustered
    variance of the mean (Miller 2024, arXiv:2411.00640, equation 4), kept between the number of tasks and n.
    """
    clusters = [list(task) for task in samples.values() if task]
    n = sum(len(task) for task in clusters)
    resolved = sum(sum(task) for task in clusters)
    if n == 0:
        return Rate(resolved=0, n=0, rate=0.0, low=0.0, high=1.0)
    rate = resolved / n
    variance = sum(sum(x - rate for x in task) ** 2 for task in clusters) / n**2
    effective = rate * (1 - rate) / variance if variance > 0 else (n if 0 < rate < 1 else len(clusters))
    low, high = wilson(rate, min(max(effective, len(clusters)), n))
    return Rate(resolved=resolved, n=n, rate=rate, low=low, high=high)


def pass_at_k(n: int, correct: int, k: int) -> float:
    """Return the unbiased estimate of pass@k from `correct` of n samples: 1 - C(n - c, k) / C(n, k).

    Chen et al. 2021, arXiv:2107.03374, equation 1. Raises ValueError unless 1 <= k <= n, 0 <= correct <= n.
    Example: n = 4, correct = 2, k = 2 -> 5/6.
    """
    if not (1 <= k <= n and 0 <= correct <= n):
        raise ValueError(f"pass@{k} needs at least {k} samples and at most {n} right, got {n} and {correct}")
    return 1.0 - math.comb(n - correct, k) / math.comb(n, k)


def mean_pass_at_k(samples: Mapping[str, Sequence[bool]], k: int) -> float | None:
    """Return pass@k averaged over the tasks with at least k samples; None without such tasks."""
    estimates = [pass_at_k(len(task), sum(task), k) for task in samples.values() if len(task) >= k]
    return sum(estimates) / len(estimates) if estimates else None


def mcnemar(first_only: int, second_only: int) -> float:
    """Return the exact two-sided p-value of McNemar's test: discordant pairs against a fair coin.

    Example: 1 against 9 -> 22/1024. No discordant pair: 1.
    """
    n = first_only + second_only
    tail = sum(math.comb(n, i) for i in range(min(first_only, second_only) + 1))
    return min(1.0, 2 * tail / 2**n)


def compare(first: Mapping[str, Sequence[bool]], second: Mapping[str, Sequence[bool]]) -> Comparison:
    """Return the paired comparison of two runs by task.

    With one sample per task this is McNemar's exact test; with more, the exact sign test on the tasks' rates.
    Only tasks with samples in both runs count.
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
    )
