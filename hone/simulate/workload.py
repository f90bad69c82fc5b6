"""What simulated rollouts do and how long it takes, drawn from a seed.

A draw depends on the seed of the attempt alone, which is that of its group, its index and its faults so far.
So different numbers of engines, sandboxes and steps of staleness are compared on the same rollouts.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from hone.rollout.attempts import Attempt
from hone.simulate.settings import SimulateSettings

_P99 = 2.3263478740408408  # standard deviations from the median to the 99th percentile


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """The course of one attempt at a rollout; all durations in seconds."""

    start_s: float
    turns: tuple[tuple[float, float], ...]  # (reply, what follows it in the sandbox)
    grade_s: float
    resolved: bool
    fault_after: int | None = None  # turns after which the infrastructure fails; None: it does not

    @property
    def seconds(self) -> float:
        """How long the rollout takes if it waits for nothing."""
        return self.start_s + sum(reply + command for reply, command in self.turns) + self.grade_s


class Workload(Protocol):
    """Where a simulation takes its durations from."""

    @property
    def task_ids(self) -> Sequence[str]: ...

    @property
    def mean_turns(self) -> float:
        """Mean number of turns of a rollout."""
        ...

    def draw(self, attempt: Attempt) -> Draw: ...

    def train_s(self, step: int) -> float:
        """Seconds that the trainer works on `step`."""
        ...

    @property
    def publish_s(self) -> float: ...

    @property
    def reply_slowdown(self) -> float:
        """See `hone.simulate.fleet`; the seconds of replies are those alone."""
        ...


def lognormal(rng: random.Random, median: float, p99_ratio: float) -> float:
    """Draw from the lognormal distribution with this median and 99th percentile / median."""
    return median * math.exp(math.log(p99_ratio) / _P99 * rng.gauss(0.0, 1.0))


@dataclass(frozen=True, slots=True)
class _TaskTraits:
    length: float  # standard deviations of the logarithm of its turns from the median
    resolve_rate: float
    broken: bool


class GivenWorkload:
    """Durations from the settings."""

    def __init__(
        self, settings: SimulateSettings, *, seed: int, train_s: float, turn_limit: int | None = None
    ) -> None:
        """`train_s`: seconds of a training step; `turn_limit`: most turns of a rollout."""
        self._settings = settings
        self._train_s = train_s
        self._turn_limit = turn_limit
        self.task_ids = [f"task-{number}" for number in range(settings.tasks)]
        self._traits = {task_id: self._draw_traits(seed, task_id) for task_id in self.task_ids}

    @property
    def publish_s(self) -> float:
        return self._settings.publish_s

    @property
    def reply_slowdown(self) -> float:
        return self._settings.reply_slowdown

    @property
    def mean_turns(self) -> float:
        sigma = math.log(self._settings.turns_ratio) / _P99
        mean = self._settings.turns * math.exp(sigma**2 / 2)
        return mean if self._turn_limit is None else min(mean, self._turn_limit)

    @property
    def broken_tasks(self) -> frozenset[str]:
        return frozenset(task_id for task_id, traits in self._traits.items() if traits.broken)

    def task_length(self, task_id: str) -> float:
        """Return how long the rollouts of a task are, in standard deviations from the median task."""
        return self._traits[task_id].length

    def train_s(self, step: int) -> float:
        return self._train_s

    def draw(self, attempt: Attempt) -> Draw:
        settings, rng, traits = self._settings, random.Random(attempt.seed), self._traits[attempt.task.id]
        share = settings.task_share
        length = math.sqrt(share) * traits.length + math.sqrt(1 - share) * rng.gauss(0.0, 1.0)
        turns = max(1, round(settings.turns * math.exp(math.log(settings.turns_ratio) / _P99 * length)))
        if self._turn_limit is not None:
            turns = min(turns, self._turn_limit)
        fault_after = 0 if traits.broken else None
        if fault_after is None and rng.random() < settings.fault_share:
            fault_after = rng.randrange(turns + 1)
        return Draw(
            start_s=lognormal(rng, settings.start_s, 3.0),
            turns=tuple(
                (
                    lognormal(rng, settings.reply_s, settings.reply_ratio),
                    lognormal(rng, settings.command_s, settings.command_ratio),
                )
                for _ in range(turns)
            ),
            grade_s=lognormal(rng, settings.grade_s, settings.grade_ratio),
            resolved=rng.random() < traits.resolve_rate,
            fault_after=fault_after,
        )

    def _draw_traits(self, seed: int, task_id: str) -> _TaskTraits:
        rng, mean = random.Random(f"{seed} traits of {task_id}"), self._settings.resolve_rate
        rate = rng.betavariate(2 * mean, 2 * (1 - mean)) if 0 < mean < 1 else mean
        return _TaskTraits(rng.gauss(0.0, 1.0), rate, rng.random() < self._settings.broken_tasks)


class MergedTurns:
    """Another workload, of which several turns in a row are one: the same seconds in fewer events."""

    def __init__(self, workload: Workload, number: int) -> None:
        self.task_ids = workload.task_ids
        self.publish_s = workload.publish_s
        self.reply_slowdown = workload.reply_slowdown
        self.mean_turns = workload.mean_turns / number
        self.train_s = workload.train_s
        self._workload = workload
        self._number = number

    def draw(self, attempt: Attempt) -> Draw:
        draw, number = self._workload.draw(attempt), self._number
        parts = [draw.turns[start : start + number] for start in range(0, len(draw.turns), number)]
        turns = tuple((sum(reply for reply, _ in part), sum(after for _, after in part)) for part in parts)
        after = draw.fault_after
        return replace(draw, turns=turns, fault_after=None if after is None else -(-after // number))
