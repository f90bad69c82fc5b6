"""The durations of a real run, from its stored rollouts and its metrics.

Each simulated attempt takes the course of one stored attempt at the same task, as a whole: how its turns,
replies and grading go together is that of the run. The seconds of a reply are those that its client saw, so
they hold the load that the engine had then, and its queue.
"""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

from hone.outcomes import Outcome
from hone.rollout.attempts import Attempt
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.rollout.store import Store
from hone.simulate.errors import SimulationError
from hone.simulate.workload import Draw
from hone.types import Trajectory
from hone.utils.jsonl import read_json_lines

MOST = 2000  # stored rollouts that are read, the newest


class MeasuredWorkload:
    """Durations of a run's rollouts and training steps."""

    def __init__(
        self, draws: Mapping[str, Sequence[Draw]], *, train_s: Sequence[float], publish_s: float
    ) -> None:
        """`draws`: by task; `train_s`: of the measured steps."""
        self.task_ids = list(draws)
        self.publish_s = publish_s
        every = [len(draw.turns) for of_task in draws.values() for draw in of_task]
        self.mean_turns = sum(every) / len(every)
        self.draws = draws
        self._train_s = train_s

    def train_s(self, step: int) -> float:
        return self._train_s[step % len(self._train_s)]

    def draw(self, attempt: Attempt) -> Draw:
        return random.Random(attempt.seed).choice(self.draws[attempt.task.id])


def measure(
    run_dir: Path, on_rollout: Callable[[int, int], None] = lambda done, of: None
) -> MeasuredWorkload:
    """Return the durations of a run of `hone train`.

    Args:
        on_rollout: is told how many stored rollouts are read, of how many.

    Raises SimulationError if it has no finished rollout or no training step, StoreError for a damaged one.
    """
    store = Store(run_dir / "rollouts")
    names = sorted(store.names(), key=_written)[-MOST:]
    draws: defaultdict[str, list[Draw]] = defaultdict(list)
    for number, name in enumerate(names, start=1):
        trajectory = store.load(name)
        if trajectory.outcome is not Outcome.CANCELLED:
            draws[trajectory.task_id].append(draw_of(trajectory))
        on_rollout(number, len(names))
    records = [record for _, record in read_json_lines(run_dir / "metrics.jsonl")]
    steps = {record["step"]: record for record in records if record["kind"] == "train" and "wait_s" in record}
    if not draws or not steps:
        raise SimulationError(
            f"{run_dir} holds {sum(map(len, draws.values()))} finished rollouts and {len(steps)} training "
            "steps: pass the directory of a run of `hone train` that has made at least one step"
        )
    ordered = [steps[step] for step in sorted(steps)]
    return MeasuredWorkload(
        dict(sorted(draws.items())),
        train_s=[float(record["seconds"]) for record in ordered],
        publish_s=_between_steps(ordered),
    )


def draw_of(trajectory: Trajectory) -> Draw:
    """Return the course of a stored rollout."""
    timings = trajectory.timings
    replies = [call.seconds for call in trajectory.calls] or [timings.get("model", 0.0)]
    between = max(0.0, timings.get("agent", 0.0) - sum(replies)) / len(replies)
    acted = "agent" in timings
    fault = is_infrastructure_fault(trajectory.outcome)
    return Draw(
        start_s=timings.get("start", 0.0),
        turns=tuple((reply, between) for reply in replies) if acted else (),
        grade_s=sum(timings.get(phase, 0.0) for phase in ("patch", "close", "grade")),
        resolved=solved(trajectory.outcome, trajectory.verdict),
        fault_after=(len(replies) if acted else 0) if fault else None,
    )


def _written(name: str) -> int:
    """Return the Unix time in ns at which a rollout was stored."""
    return int(name.rpartition("__")[2])


def _between_steps(records: Sequence[Mapping[str, Any]]) -> float:
    """Return the median seconds of a step without waiting and training: weight update, checkpoint."""
    rest = [
        after["time"] - before["time"] - after["wait_s"] - after["seconds"]
        for before, after in pairwise(records)
        if after["step"] == before["step"] + 1
    ]
    return max(0.0, median(rest)) if rest else 0.0
