"""Scores of single turns, computed while the rollout runs.

    agent records a turn -> observers: judge it, measure its progress -> the agent continues at once
    rollout has ended    -> wait, for a bounded time, for running scores -> scores of the trajectory

Invariant: no scoring task outlives the rollout, and no scoring failure fails it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from hone.agents.contract import AgentRun
from hone.grading.judge import Judge, TurnJudge
from hone.grading.progress import Grade, ProgressTracker
from hone.grading.settings import JudgeSettings, ProgressSettings
from hone.rollout.rewards import weigh
from hone.types import Scores, Task, Trajectory, Turn
from hone.utils.concurrency import task_group

Read = Callable[[], Awaitable[str]]  # reads the patch in the agent's sandbox without changing it


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorers:
    """The scorers of turns that all rollouts of a run share."""

    judge: Judge | None = None  # None: judge.enabled is false
    progress: ProgressSettings = field(default_factory=ProgressSettings)

    @property
    def judging(self) -> JudgeSettings:
        return JudgeSettings() if self.judge is None else self.judge.settings


class Scoring:
    """The running scores of one rollout, as tasks of `tasks`."""

    def __init__(
        self, scorers: Scorers, tasks: asyncio.TaskGroup, task: Task, run: AgentRun, seed: int, grade: Grade
    ) -> None:
        self._scorers, self._tasks, self._task, self._run, self._grade = scorers, tasks, task, run, grade
        self._judging: TurnJudge | None = None
        self._progressing: ProgressTracker | None = None
        if scorers.judge is not None:
            self._judging = TurnJudge(
                scorers.judge, tasks, issue=task.problem, name=run.rollout_id, seed=seed
            )
            run.observers.append(self._judge)

    def watch(self, read: Read) -> None:
        """Measure progress in the agent's sandbox, whose patch `read` returns, from now on."""
        if self._scorers.progress.enabled:
            self._progressing = ProgressTracker(
                self._task, self._scorers.progress, self._tasks, grade=self._grade, read=read
            )
            self._run.observers.append(self._progressing.observe)

    async def close(self, trajectory: Trajectory) -> Trajectory:
        """Return the trajectory with its scores and turn rewards; do not wait if it is not trained."""
        if trajectory.reward is None:
            return trajectory
        started = time.monotonic()
        async with asyncio.TaskGroup() as waiting:
            judged = waiting.create_task(self._judging.settle()) if self._judging else None
            measured = waiting.create_task(self._progressing.settle()) if self._progressing else None
        scores = Scores(
            judgements=tuple(judged.result()) if judged else None,
            progress=measured.result() if measured else None,
        )
        timings = {**trajectory.timings, "scores": time.monotonic() - started}
        scored = dataclasses.replace(trajectory, scores=scores, timings=timings)
        return weigh(scored, self._scorers.judging, self._scorers.progress)

    def abandon(self) -> None:
        """Cancel the scores that are still running."""
        for scores in (self._judging, self._progressing):
            if scores is not None:
                scores.abandon()

    async def _judge(self, turn: Turn) -> None:
        assert self._judging is not None
        self._judging.observe(turn, submits=self._run.submitted)


@asynccontextmanager
async def open_scoring(
    scorers: Scorers, task: Task, run: AgentRun, seed: int, grade: Grade
) -> AsyncGenerator[Scoring]:
    """Yield the scoring of a rollout; cancel running scores at the end, also on cancellation."""
    async with task_group() as tasks:
        scoring = Scoring(scorers, tasks, task, run, seed, grade)
        try:
            yield scoring
        finally:
            scoring.abandon()
