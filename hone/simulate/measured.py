"""The durations of a real run, from its stored rollouts and its metrics.

Each simulated attempt takes the course of one stored attempt at the same task, as a whole: how its turns,
replies and grading go together is that of the run. How much replies slow each other down is fitted to the
seconds that their clients saw, which hold the engine's load and its queue:

    seconds = (a + b x sampled tokens) x (1 + slowdown x (n - 1))

where n is the number of replies under way, the mean over the reply's time. It gives each one's seconds alone.
"""

from __future__ import annotations

import random
import tomllib
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from hone.outcomes import Outcome
from hone.rollout.attempts import Attempt
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.rollout.store import Store
from hone.simulate.errors import SimulationError
from hone.simulate.workload import Draw
from hone.types import Trajectory
from hone.utils.jsonl import read_json_lines

_FEWEST = 100  # replies to which a slowdown can be fitted
_TRIED = 200  # slowdowns, each 3.5 % above the one before
MOST = 2000  # stored rollouts that are read, the newest


class MeasuredWorkload:
    """Durations of a run's rollouts and training steps."""

    def __init__(
        self,
        draws: Mapping[str, Sequence[Draw]],
        *,
        train_s: Sequence[float],
        publish_s: float,
        reply_slowdown: float = 0.0,
    ) -> None:
        """`draws`: by task, with the seconds of replies alone; `train_s`: of the measured steps."""
        self.task_ids = list(draws)
        self.publish_s = publish_s
        self.reply_slowdown = reply_slowdown
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
    found: list[_Course] = []
    for number, name in enumerate(names, start=1):
        trajectory = store.load(name)
        if trajectory.outcome is not Outcome.CANCELLED:
            found.append(_course_of(trajectory))
        on_rollout(number, len(names))
    replies = [reply for course in found for reply in course.replies]
    slowdown, alone = fit_slowdown(replies, servers=_servers_of(run_dir))
    draws: defaultdict[str, list[Draw]] = defaultdict(list)
    seconds = iter(alone)
    for course in found:
        turns = tuple((next(seconds), course.between) for _ in course.replies)
        draws[course.task_id].append(replace(course.draw, turns=turns))
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
        reply_slowdown=slowdown,
    )


@dataclass(frozen=True, slots=True)
class Reply:
    """A reply of a stored rollout."""

    begun_at: float | None  # Unix time; None: not known
    seconds: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Course:
    task_id: str
    draw: Draw  # without its turns
    replies: Sequence[Reply]
    between: float  # seconds after each reply, mean


def _course_of(trajectory: Trajectory) -> _Course:
    timings, acted = trajectory.timings, "agent" in trajectory.timings
    calls = [(call.seconds, call.sampled_tokens) for call in trajectory.calls]
    calls = (calls or [(timings.get("model", 0.0), 0)]) if acted else []
    taken = sum(seconds for seconds, _ in calls)
    acting = timings.get("agent", 0.0) - timings.get("restore", 0.0)
    between = max(0.0, acting - taken) / max(1, len(calls))
    replies: list[Reply] = []
    at = trajectory.started_at
    for seconds, tokens in calls:
        replies.append(Reply(at, seconds, tokens))
        at = None if at is None else at + seconds + between
    return _Course(
        task_id=trajectory.task_id,
        draw=Draw(
            start_s=timings.get("start", 0.0),
            turns=(),
            grade_s=sum(timings.get(phase, 0.0) for phase in ("patch", "close", "grade")),
            resolved=solved(trajectory.outcome, trajectory.verdict),
            fault_after=len(calls) if is_infrastructure_fault(trajectory.outcome) else None,
        ),
        replies=replies,
        between=between,
    )


def _servers_of(run_dir: Path) -> int:
    """Return the number of engine servers of a run."""
    path = run_dir / "config.toml"
    engine = tomllib.loads(path.read_text()).get("engine", {}) if path.is_file() else {}
    return len(engine.get("urls", [])) or engine.get("servers", 1)


def fit_slowdown(replies: Sequence[Reply], *, servers: int = 1) -> tuple[float, list[float]]:
    """Return the slowdown (see `hone.simulate.fleet`) and the seconds that each reply takes alone.

    Each of the equal `servers` is taken to sample its share of the replies under way. Without the times of
    all replies: 0 and the seconds as they are.
    """
    seconds = np.array([reply.seconds for reply in replies])
    begun = np.array([np.nan if reply.begun_at is None else reply.begun_at for reply in replies])
    if len(replies) < _FEWEST or not np.isfinite(begun).all() or not (seconds > 0).all():
        return 0.0, seconds.tolist()
    begun -= begun.min()
    # the integral of the replies under way is piecewise linear between their beginnings and ends
    times = np.concatenate([begun, begun + seconds])
    change = np.concatenate([np.ones(len(begun)), -np.ones(len(begun))])
    order = np.argsort(times, kind="stable")
    times, number = times[order], np.cumsum(change[order])
    integral = np.concatenate([[0.0], np.cumsum(np.diff(times) * number[:-1])])
    ends = np.interp(begun + seconds, times, integral)
    under_way = (ends - np.interp(begun, times, integral)) / seconds
    load = 1 + (under_way - 1) / servers
    tokens = np.array([reply.tokens for reply in replies], np.float64)

    def misfit(slowdown: float) -> float:
        factor = 1 + slowdown * (load - 1)
        columns = np.column_stack([factor, factor * tokens])
        fit, *_ = np.linalg.lstsq(columns, seconds)
        return float(((seconds - columns @ fit) ** 2).sum())

    slowdown = min((0.0, *np.geomspace(1e-3, 1.0, _TRIED).tolist()), key=misfit)
    return slowdown, (seconds / (1 + slowdown * (load - 1))).tolist()


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
