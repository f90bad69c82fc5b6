"""A training whose turns are judged by a real model and measured by real hidden tests."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.train.metrics import read_metrics
from tests.e2e.small_run import RECIPE, hone, sets, train

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1500)]

SCORED = {
    "train__steps": 1,
    "groups_per_step": 2,
    "rollout__group_size": 2,
    "judge__enabled": "true",
    "judge__votes": 2,
    "judge__max_tokens": 16,
    "judge__engine__max_batch": 8,
    "judge__engine__context_tokens": 4096,
    "progress__enabled": "true",
    "train__algorithm__reward": "final",
}


@pytest.fixture(scope="module")
def scored(finished: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A step of training from the small quickstart's start, with that model for its judge, too."""
    run_dir = tmp_path_factory.mktemp("scored") / "run"
    train(str(RECIPE), *sets(run_dir, model__path=finished / "start", **SCORED))
    return run_dir


def test_scores_are_stored_shown_and_counted(scored: Path) -> None:
    names = sorted((scored / "rollouts").iterdir())
    assert len(names) == 4
    for name in names:
        meta = json.loads((name / "meta.json").read_text())
        made = meta["sample_metadata"]
        turns = json.loads((name / "traj.json").read_text())["turns"]
        judged = {step["step_index"]: step for step in made["prm"]["step_details"]}
        assert set(judged) <= {turn["index"] for turn in turns if turn["action"] is not None}
        assert all(len(step["votes"]) == 2 for step in judged.values())
        assert [state["step_index"] for state in made["progress"]["steps"]] == [t["index"] for t in turns]
        assert set(meta["turn_rewards"]) == {str(turn["index"]) for turn in turns}
        assert made["reward"]["outcome_reward"] == meta["reward"]
    (metrics,) = read_metrics(scored)
    assert metrics["progress/states"] >= 0
    assert "turn_reward" in metrics
    assert "progress" in hone("show", str(names[0])).stdout


def test_replay_recomputes_advantages_from_stored_scores(scored: Path, tmp_path: Path) -> None:
    again = tmp_path / "again"
    train(str(scored), "--out", str(again), "--set", "judge.coefficient=0.25", command="replay")
    (made,), (weighed,) = read_metrics(scored), read_metrics(again)
    assert weighed.get("judge/votes") == made.get("judge/votes")
    assert weighed["reward"] == pytest.approx(made["reward"])  # the order of a sum may differ


def test_a_judge_that_does_not_answer_is_told_before_any_rollout(finished: Path, tmp_path: Path) -> None:
    scored = {**SCORED, "judge__engine": '{kind="openai", urls=["http://127.0.0.1:9/v1"], model_name="m"}'}
    del scored["judge__engine__max_batch"], scored["judge__engine__context_tokens"]
    run = tmp_path / "run"
    arguments = sets(run, model__path=finished / "start", **scored)
    done = hone("train", str(RECIPE), *arguments, check=False)
    assert done.returncode == 1
    assert "127.0.0.1:9" in done.stderr
    assert not (run / "rollouts").exists() or not any((run / "rollouts").iterdir())
