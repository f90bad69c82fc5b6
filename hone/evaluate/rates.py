"""Resolve rates of single tasks, from the results of an evaluation."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from pathlib import Path

from hone.evaluate import results
from hone.evaluate.runner import RESULTS
from hone.tasks.sources import RATE
from hone.types import Task

_Z = 1.959964  # two-sided 95 %


def rate_tasks(tasks: Iterable[Task], evaluation: Path, policy: str) -> list[Task]:
    """Return the tasks with `metadata.rate`: n, resolved, rate, low, high, and the policy's name.

    A task without a sample is unchanged. Samples lost to infrastructure faults do not count.

    Args:
        evaluation: directory of the evaluation of the tasks.
    """
    samples = results.samples_by_task(results.read(evaluation / RESULTS).values())
    rated: list[Task] = []
    for task in tasks:
        own = samples.get(task.id)
        if own:
            low, high = wilson(sum(own), len(own))
            found = {
                "policy": policy,
                "n": len(own),
                "resolved": sum(own),
                "rate": sum(own) / len(own),
                "low": round(low, 4),
                "high": round(high, 4),
            }
            task = dataclasses.replace(task, metadata={**task.metadata, RATE: found})
        rated.append(task)
    return rated


def wilson(successes: int, n: int) -> tuple[float, float]:
    """Return the 95 % interval of the probability of a success, from n independent trials of one task.

    Wilson 1927, J. Am. Stat. Assoc. 22, 209-212. Example: 0 of 4 -> (0, 0.49).
    """
    share, extra = successes / n, _Z**2 / n
    middle = (share + extra / 2) / (1 + extra)
    half = _Z / (1 + extra) * math.sqrt(share * (1 - share) / n + extra / (4 * n))
    return max(0.0, middle - half), min(1.0, middle + half)
