"""Scores of single turns, made beside a rollout while it goes on.

    agent records a turn -> observers: judge it, measure its progress -> the agent goes on at once
    rollout has ended    -> wait, for a bounded time, for what is under way -> scores of the trajectory

The rule that must not break: no task outlives the rollout, and no failure to score fails it.
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
from hone.rollout.step_rewards import weigh
from hone.types import Scores, Task, Trajectory, Turn

Read = Callable[[], Awaitable[str]]  # the patch in the agent's sandbox, which stays as it is


@dataclass(frozen=True, slots=True, kw_only=True)
class Scorers:
    """Who scores the turns of a run's rollouts."""

    judge: Judge | None = None  # None: judge.enabled is false
    progress: ProgressSettings = field(default_factory=ProgressSettings)

    @property
    def judging(self) -> JudgeSettings:
        return JudgeSettings() if self.judge is None else self.judge.settings


class Scoring:
    """The scores of one rollout, under way in `tasks`."""

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
        """The agent's sandbox is there: measure progress in it from now on."""
        if self._scorers.progress.enabled:
            self._progressing = ProgressTracker(
                self._task, self._scorers.progress, self._tasks, grade=self._grade, read=read
            )
            self._run.observers.append(self._progressing.observe)

    async def close(self, trajectory: Trajectory) -> Trajectory:
        """The trajectory with its scores and the rewards they make; one that trains nobody waits for none."""
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
        """Give up what is still under way."""
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
    """Whatever is still under way at the end is cancelled, also when the rollout itself is."""
    async with asyncio.TaskGroup() as tasks:
        scoring = Scoring(scorers, tasks, task, run, seed, grade)
        try:
            yield scoring
        finally:
            scoring.abandon()
