"""A rollout's scores of single turns, as `hone show` tells them."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from hone.cli import main
from hone.grading.settings import JudgeSettings, ProgressSettings
from hone.outcomes import Outcome
from hone.rollout.rewards import weigh
from hone.rollout.store import Store
from hone.types import Judgement, ProgressScores, ProgressStatus, Scores, TurnProgress, Vote
from tests.cli.fake_run import make_run, trajectory


def scored_run(folder: Path) -> str:
    run = make_run(folder)
    votes = tuple(Vote(score=0.5, latency_ms=1.0, raw_text="", ok=ok) for ok in (True, True, False))
    step = TurnProgress(step_index=0, status=ProgressStatus.OK, changed=True, score=0.25)
    made = dataclasses.replace(
        trajectory("scored", Outcome.UNRESOLVED),
        scores=Scores(
            judgements=(Judgement(step_index=0, votes=votes),),
            progress=ProgressScores(initial_score=0.0, steps=(step,)),
        ),
    )
    weighed = weigh(made, JudgeSettings(enabled=True), ProgressSettings(enabled=True))
    return f"{run}/{Store(run / 'rollouts').save(weighed, group=9, index=9)}"


def test_show_prints_judge_and_progress_scores_of_turns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    name = scored_run(tmp_path / "run")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["hone", "show", name])
    assert main() == 0
    out = capsys.readouterr().out
    assert "judge +0.50 (2 of 3 votes)  progress 0.25  reward +0.75" in out
    assert "final score" in out
    assert "-0.25" in out
    monkeypatch.setattr(sys, "argv", ["hone", "show", name, "--json"])
    assert main() == 0
    record = json.loads(capsys.readouterr().out)
    assert record["turn_rewards"] == {"0": 0.75}
    assert record["scores"]["score"] == -0.25


def test_show_prints_the_validations_of_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run = make_run(tmp_path / "run")
    results = [(0, 0, 0.0, 1.0), (2, 40, 0.6, 0.9)]  # every rollout of the first one met a fault
    with (run / "metrics.jsonl").open("a") as file:
        for step, n, low, high in results:
            record = {"kind": "validation", "step": step, "n": n, "low": low, "high": high}
            file.write(json.dumps({**record, "resolve_rate": 0.775 if n else 0.0}) + "\n")
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["hone", "show", str(run)])
    assert main() == 0
    out = capsys.readouterr().out
    assert "Validation (95 % interval)" in out
    assert "77.5 % (60.0 to 90.0)" in out
