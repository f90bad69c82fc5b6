"""Tasks of the harder curricula, demonstrated and graded in sandboxes."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path

import pytest

from hone.agents import AgentRun, make_agent
from hone.agents.scaffold import load_scaffold
from hone.agents.scripted import DebuggerDemonstrator, ScriptedAgent
from hone.environment import base_mounts, extract_patch
from hone.grading import Grader, GradingSettings
from hone.sandbox import Provider, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.tasks.workspace import prepare
from hone.types import Task
from tests.agents.settings import agent_settings

pytestmark = pytest.mark.sandbox
ALL = pytest.mark.full  # `make test` runs one curriculum, whose fix has the most parts
CURRICULA = [
    pytest.param("more_families", marks=ALL),
    pytest.param("two_bugs", marks=ALL),
    pytest.param("more_files", marks=ALL),
    "three_edits",
]


def some_tasks(curriculum: str) -> list[Task]:
    splits = generate(TasksSettings(curriculum=curriculum, train=2, test=0, unseen=1))  # type: ignore[arg-type]
    return [*splits.train, *splits.test_unseen]


async def patch_of(provider: Provider, task: Task, workspace: Path, commands: Sequence[str]) -> str:
    """Return the patch of an agent that runs `commands` and submits."""
    spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace))
    agent = ScriptedAgent(load_scaffold("tiny"), lambda _task, _rollout_id: commands)
    async with await provider.start(spec) as sandbox:
        await agent.run(task, sandbox, None, AgentRun(rollout_id="0"))
        return await extract_patch(sandbox, task)


@pytest.mark.parametrize("curriculum", CURRICULA)
def test_gold_patch_resolves_and_each_part_of_the_fix_does_not(curriculum: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=tmp_path)
            for task in some_tasks(curriculum):
                workspace = prepare(task, tmp_path)
                assert (await grader.grade(task, task.checks.gold_patch)).resolved
                right = [fix["command"] for fix in task.metadata["fixes"] if fix["right"]]
                for count in range(len(right) + 1):
                    for commands in itertools.combinations(right, count):
                        patch = await patch_of(provider, task, workspace, commands)
                        verdict = await grader.grade(task, patch)
                        assert verdict.resolved == (count == len(right)), (task.id, commands)

    asyncio.run(scenario())


@pytest.mark.parametrize("shows", ["bash", "debugger"])
@pytest.mark.parametrize("curriculum", CURRICULA)
def test_demonstrations_resolve_or_not_as_accuracy_says(curriculum: str, shows: str, tmp_path: Path) -> None:
    async def scenario() -> None:
        task, *_ = some_tasks(curriculum)
        workspace = prepare(task, tmp_path)
        spec = SandboxSpec(layer=workspace, mounts=base_mounts(workspace))
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=tmp_path)
            for accuracy in (0.0, 1.0):
                settings = {"kind": "demonstrator", "prompts": "tiny", "accuracy": accuracy, "shows": shows}
                agent, run = make_agent(agent_settings(settings)), AgentRun(rollout_id="0")
                opened = agent.open(spec) if isinstance(agent, DebuggerDemonstrator) else nullcontext(spec)
                async with opened as own, await provider.start(own) as sandbox:
                    await agent.run(task, sandbox, None, run)  # type: ignore[arg-type]
                    patch = await extract_patch(sandbox, task)
                assert run.submitted
                assert (await grader.grade(task, patch)).resolved == (accuracy == 1.0)

    asyncio.run(scenario())
