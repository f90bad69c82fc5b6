"""Single rollouts on virtual time, in memory: faults of the agent and the provider, scores of turns."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hone.agents import AgentRun
from hone.agents.contract import AgentFailed
from hone.grading.settings import ProgressSettings
from hone.outcomes import Outcome
from hone.policy.reply import Chat
from hone.rollout.episode import Episode, run_episode
from hone.rollout.scoring import Scorers
from hone.sandbox import Sandbox, SandboxSpec
from hone.types import ProgressStatus, Task, Trajectory, Turn
from tests.rollout.memory import World
from tests.rollout.real import tasks
from tests.virtual_time import run


def roll_out(world: World, root: Path, scorers: Scorers | None = None) -> Trajectory:
    context = replace(world.context(root), scorers=scorers)
    (task,) = tasks(1)
    return run(run_episode(Episode(task=task, rollout_id="r", group_id="g", workspace=root, seed=1), context))


class Unstarted(World):
    """Its sandboxes never start."""

    async def start(self, spec: SandboxSpec) -> Sandbox:
        await asyncio.Event().wait()
        raise AssertionError


class Unfit(World):
    """Its agent cannot work."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        raise AgentFailed("no shell in the sandbox")


@pytest.mark.parametrize(
    ("world", "error"),
    [(Unstarted, "no sandbox started within 3600 s"), (Unfit, "no shell in the sandbox")],
)
def test_sandbox_without_a_working_agent_is_sandbox_error(
    tmp_path: Path, world: type[World], error: str
) -> None:
    done = roll_out(world([]), tmp_path)
    assert (done.outcome, done.reward, done.error) == (Outcome.SANDBOX_ERROR, None, error)


class Working(World):
    """Its agent records one turn."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        await run.record(
            Turn(index=0, node=None, reply="", action="x", exit_code=0, observation="", seconds=0.0)
        )


def test_progress_of_each_turn_is_in_the_trajectory(tmp_path: Path) -> None:
    done = roll_out(Working([]), tmp_path, Scorers(progress=ProgressSettings(enabled=True)))
    assert done.outcome is Outcome.RESOLVED
    assert done.scores.progress is not None
    (step,) = done.scores.progress.steps
    assert (step.step_index, step.status, step.changed) == (0, ProgressStatus.OK, True)
