"""Rollouts and trainings of real verl, without branches: exact log-probabilities, and a reward that rises."""

from __future__ import annotations

import json
import statistics
import subprocess
from pathlib import Path
from typing import Any

from hone.config import RunSettings
from hone.integrations.verl.launch import plan_verl, write_files
from hone.rollout.store import Store
from tests.integrations.verl.training import HERE, MODEL, PYTHON, REAL_VERL, environment, recipe, train

pytestmark = REAL_VERL


def found_by(script: str, *arguments: object, folder: Path) -> Any:
    """Run a script of `in_verl` with verl's Python; return what it found."""
    done = subprocess.run(
        [PYTHON, HERE / "in_verl" / script, *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(folder),
        cwd=folder,
        check=False,
    )
    lines = [line for line in done.stdout.splitlines() if line.startswith("FOUND ")]
    assert lines, done.stderr[-4000:]
    return json.loads(lines[0].removeprefix("FOUND "))


def test_agent_loop_gives_exact_rows_and_none_for_a_fault(tmp_path: Path) -> None:
    faults = 2  # of the four rollouts of the first group
    settings = RunSettings.model_validate(
        recipe(
            tmp_path,
            1,
            rollout={"group_size": 8, "concurrent_episodes": 8, "attempts": 1},
        )
    )
    plan = plan_verl(settings)
    write_files(plan)

    found = found_by("agent_loop.py", plan.files.agent_loop, MODEL, str(faults), folder=tmp_path)

    assert found["rows"].count(0) == faults
    assert found["gap"] <= 1e-4
    assert found["stray"] == 0
    assert found["versions"] == [4]
    assert all(len(set(rewards)) == 1 for rewards in found["rewards"])
    store = Store(tmp_path / "run" / "rollouts")
    stored = {each.rollout_id: each for each in map(store.load, store.names())}
    trained = dict(zip(found["rollout_ids"], found["trained"], strict=True))
    assert trained == {name: stored[name].tree.sampled_tokens for name in trained}


def test_reward_rises_in_twenty_steps_on_exact_logprobs(tmp_path: Path) -> None:
    done = train(tmp_path, recipe(tmp_path, 20))

    assert len(done.batches) == len(done.rewards) == 20
    assert max(row.gap for row in done.rows) <= 1e-4
    assert max(row.stray for row in done.rows) == 0
    assert statistics.mean(done.rewards[-5:]) > statistics.mean(done.rewards[:5])


def test_verl_computes_hones_advantages_of_branches_and_faults(tmp_path: Path) -> None:
    centred, divided = found_by("advantages.py", folder=tmp_path)

    assert centred <= 1e-6
    assert divided <= 5e-6  # verl adds 1e-6 to the deviation
