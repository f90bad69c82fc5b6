"""The small variant of each shipped recipe makes two training steps on this machine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.rollout.ledger import Ledger
from tests.e2e.small_run import REPOSITORY, train

TINY = sorted((REPOSITORY / "recipes").glob("*-tiny.toml"))
SMALL = {
    "tasks.train": 24,
    "tasks.test": 1,
    "tasks.unseen": 1,
    "demonstrations.rollouts": 8,
    "sft.epochs": 1,
    "groups_per_step": 2,
    "rollout.group_size": 2,
    "rollout.attempts": 1,
    "train.steps": 2,
    # so small a model resolves nothing; outcomes that differ in worth give it a gradient where they occur
    "rollout.rewards": "{ unresolved = -0.2, no_patch = -0.6, turn_limit = -0.4 }",
}


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.parametrize("recipe", TINY, ids=lambda path: path.stem)
def test_tiny_recipe_trains_two_steps(recipe: Path, tmp_path: Path):
    values = {"run_dir": tmp_path / "run", **SMALL}
    sets = [word for item in values.items() for word in ("--set", "{}={}".format(*item))]
    train(str(recipe), *sets)
    with Ledger.read(tmp_path / "run") as ledger:
        assert ledger.balance().steps == 2
    lines = (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    assert sorted({json.loads(line)["step"] for line in lines}) == [0, 1]
