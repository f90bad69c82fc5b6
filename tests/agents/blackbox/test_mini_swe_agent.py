"""The command line of the mini-swe-agent package in sandboxes without a network, through litellm."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.policy.gateway import SessionLimits
from hone.train.samples import tree_samples
from hone.types import Trajectory
from tests.agents.blackbox.exactness import assert_exact
from tests.agents.blackbox.world import ScriptedEngine, call, open_world, published, script
from tests.grading.example import make_task

pytestmark = [pytest.mark.sandbox, pytest.mark.blackbox]

LOOK = "THOUGHT: I look. " + call("bash", command="cat stats.py; ls -a ~ . | grep -c mini")
FIX = "THOUGHT: I fix it. " + call("bash", command="sed -i 's/a - b/a + b/' stats.py && git diff")
SUBMIT = "THOUGHT: I submit. " + call("bash", command="echo COMPLETE_TASK_AND_SUBMIT_FINAL_OUTPUT")
KINDS = {
    "fix 🐞 it": (Outcome.RESOLVED, script(LOOK, FIX, SUBMIT)),
    "look at it": (Outcome.TURN_LIMIT, script(LOOK)),
    "say nothing": (Outcome.FORMAT_LIMIT, script("I have nothing to run.")),
}


@pytest.mark.full
def test_mini_swe_agent_outcomes_and_tokens_are_exact(tmp_path: Path) -> None:
    def answer(i: int, prompt: str) -> str:
        statement = prompt.split("Please solve this issue: ")[1][:40]
        return next(reply(i, prompt) for problem, (_, reply) in KINDS.items() if problem in statement)

    engine = ScriptedEngine(answer)

    async def scenario() -> list[Trajectory]:
        program, limits = published("mini-swe-agent"), SessionLimits(calls=3)
        async with open_world(tmp_path, program, engine, limits=limits) as world:
            tasks = [replace(make_task(), problem=problem) for problem in KINDS]
            return await asyncio.gather(*(world.attempt(task, task.problem) for task in tasks))

    trajectories = dict(zip(KINDS, asyncio.run(scenario()), strict=True))
    for problem, trajectory in trajectories.items():
        assert (problem, trajectory.outcome) == (problem, KINDS[problem][0])
        assert trajectory.notes["program"]["exit_code"] == 0  # each ended by itself
        assert_exact(trajectory, engine, problem)
        assert len(trajectory.turns) == 3
    fixed = trajectories["fix 🐞 it"]
    assert [turn.action for turn in fixed.turns][1] == "bash: sed -i 's/a - b/a + b/' stats.py && git diff"
    assert "return a - b" in fixed.turns[0].observation
    assert "+    return a + b" in fixed.turns[1].observation
    assert fixed.patch.count("diff --git") == 1
    samples = tree_samples(fixed.tree, rollout_id="r", group_id="g", advantage=1.0)
    assert len(samples) == 1  # its conversation only grows
    assert float(samples[0].weight.sum()) == fixed.tree.sampled_tokens
