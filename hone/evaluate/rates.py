"""Resolve rates of single tasks, from the results of an evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path

from hone.evaluate import results
from hone.evaluate.runner import RESULTS
from hone.evaluate.statistics import mean_interval
from hone.tasks.sources import RATE
from hone.types import Task


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
            low, high = mean_interval(own)
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
