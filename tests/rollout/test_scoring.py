"""Scores of turns beside real rollouts: whatever happens to them, the rollout is none the worse."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path
from typing import Any

import pytest

from hone.agents import BashAgent
from hone.grading import GraderError
from hone.grading.settings import ProgressSettings
from hone.outcomes import Outcome
from hone.policy.engine import EngineError
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.rewards import final_score
from hone.rollout.scoring import Scorers
from hone.tasks.workspace import prepare
from hone.types import Task, Trajectory, Verdict
from tests.grading.judging import ScriptedJudge, judge_of, naive
from tests.rollout.real import SCAFFOLD, gold, open_context, script, tasks
from tests.rollout.test_episode import Says

pytestmark = pytest.mark.sandbox
BREAKS = "false"
HALF = "echo 'a note' > notes.txt"


def episode(task: Task, context: RolloutContext) -> Episode:
    workspace = prepare(task, context.workspaces)
    return Episode(task=task, rollout_id="r", group_id="g", workspace=workspace, seed=1)


def roll_out(
    root: Path, commands: list[str], scorers: Scorers, context: dict[str, Any] | None = None, **options: Any
) -> Trajectory:
    async def run() -> Trajectory:
        agent = script(lambda task, _: [gold(task) if c == "gold" else c for c in commands])
        async with open_context(root, agent, **options) as real:
            changed = dataclasses.replace(real, scorers=scorers, **(context or {}))
            done = await run_episode(episode(tasks(1)[0], changed), changed)
            assert asyncio.all_tasks() == {asyncio.current_task()}
            return done

    return asyncio.run(run())


PROGRESS = ProgressSettings(enabled=True)


def test_rollout_is_judged_and_measured_turn_by_turn(tmp_path: Path) -> None:
    scorers = Scorers(judge=judge_of(ScriptedJudge(naive), coefficient=0.5), progress=PROGRESS)
    done = roll_out(tmp_path, [HALF, BREAKS, "gold"], scorers)
    assert (done.outcome, done.reward) == (Outcome.RESOLVED, 1.0)
    judgements, progress = done.scores.judgements, done.scores.progress
    assert judgements is not None
    assert progress is not None
    # the turn that submits is not judged
    assert [(j.step_index, j.score) for j in judgements] == [(0, 1.0), (1, -1.0), (2, 1.0)]
    assert progress.initial_score == 0.0
    assert [(s.step_index, s.changed, s.score) for s in progress.steps] == [
        (0, True, 0.0),
        (1, False, 0.0),
        (2, True, 1.0),
        (3, False, 1.0),
    ]
    assert done.turn_rewards == {0: 0.5, 1: -0.5, 2: 1.5, 3: 0.0}
    assert final_score(done) == pytest.approx(1 + 0.5 / 3 + 1.0)
    assert done.timings["scores"] >= 0


def test_measuring_does_not_change_the_rollout(tmp_path: Path) -> None:
    """A repository of the agent's own inside the tree, its index and its mess are all as it left them."""
    looks = [
        "mkdir sub && cd sub && git init -q && echo x > file.txt && git add file.txt",
        "cd sub && git status --porcelain; git -C .. status --porcelain; ls -a .. /tmp",
        "gold",
        "git diff --stat; git -C sub ls-files",
    ]
    plain = roll_out(tmp_path / "plain", looks, Scorers())
    measured = roll_out(tmp_path / "measured", looks, Scorers(progress=PROGRESS))
    assert [turn.observation for turn in measured.turns] == [turn.observation for turn in plain.turns]
    assert measured.patch == plain.patch
    assert measured.scores.progress is not None
    assert [step.status for step in measured.scores.progress.steps] == ["ok"] * 5


async def dead(messages: list[tuple[str, str]], seed: int) -> str:
    raise EngineError("the judge is gone")


async def silent(messages: list[tuple[str, str]], seed: int) -> str:
    await asyncio.Event().wait()
    raise AssertionError


class NoVerdictButTheLast:
    """A grader that fails for every state but those it gets a second time."""

    def __init__(self) -> None:
        self._asked: set[str] = set()

    async def grade(self, task: Task, patch: str) -> Verdict:
        if patch in self._asked:
            return Verdict(resolved=True, tests={}, score=1.0)
        self._asked.add(patch)
        raise GraderError("no sandbox to grade in")


def test_failing_judge_or_grader_does_not_harm_the_rollout(tmp_path: Path) -> None:
    for answer, settings in ((dead, {}), (silent, {"wait_s": 0.05}), (silent, {"timeout_s": 0.05})):
        judge = judge_of(ScriptedJudge(answer), **settings)
        scorers = Scorers(judge=judge, progress=PROGRESS)
        done = roll_out(tmp_path, ["gold"], scorers, context={"grader": NoVerdictButTheLast()})
        assert (done.outcome, done.reward) == (Outcome.RESOLVED, 1.0)
        assert {judgement.status for judgement in done.scores.judgements or ()} == {"exception"}
        assert done.scores.progress is not None
        assert {step.status for step in done.scores.progress.steps} == {"no_verdict"}
        assert set(done.turn_rewards.values()) == {0.0}


def test_untrained_rollout_does_not_wait_for_scores(tmp_path: Path) -> None:
    judge = judge_of(ScriptedJudge(silent), wait_s=10_000, timeout_s=10_000)

    async def run() -> Trajectory:
        async with open_context(tmp_path, BashAgent(SCAFFOLD)) as real:
            context = dataclasses.replace(
                real,
                scorers=Scorers(judge=judge, progress=PROGRESS),
                new_chat=lambda rollout_id, seed: Says("true", EngineError("down")),
            )
            return await run_episode(episode(tasks(1)[0], context), context)

    done = asyncio.run(run())
    assert (done.outcome, done.reward, dict(done.turn_rewards)) == (Outcome.ENGINE_ERROR, None, {})
    assert len(done.turns) == 1
    assert done.scores.judgements is None


def test_cancelling_a_rollout_ends_its_scoring(tmp_path: Path) -> None:
    engine = ScriptedJudge(silent)

    async def run() -> None:
        agent = script(lambda task, _: ["true", "sleep 1000"])
        async with open_context(tmp_path, agent) as real:
            scorers = Scorers(judge=judge_of(engine), progress=PROGRESS)
            context = dataclasses.replace(real, scorers=scorers)
            rollout = episode(tasks(1)[0], context)
            job = asyncio.create_task(run_episode(rollout, context))
            await engine.arrived(3)
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            assert asyncio.all_tasks() == {asyncio.current_task()}
        assert engine.under_way == 0

    asyncio.run(run())
