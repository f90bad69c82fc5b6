"""A training step whose agents and grader work in the image of a data set's row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.train.metrics import read_metrics
from tests.e2e.small_run import RECIPE, hone, sets
from tests.families import import_family, swe_bench_5, write_lower_layers

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1500)]


def test_step_is_trained_on_rollouts_in_the_image(finished: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    row, task = import_family(swe_bench_5, write_lower_layers(tmp_path, "3.9"), cache, tmp_path)
    rows = tmp_path / "rows.jsonl"
    rows.write_text(json.dumps(row) + "\n")
    run_dir = tmp_path / "run"
    in_image = {
        "tasks__source": rows,
        "tasks__unproven": "true",
        "sandbox__cache_dir": cache,
        "train__steps": 1,
        "groups_per_step": 1,
        "rollout__group_size": 4,
    }
    hone("train", str(RECIPE), *sets(run_dir, model__path=finished / "start", **in_image))
    (metrics,) = read_metrics(run_dir)
    assert metrics["step"] == 1
    rollouts = [json.loads(path.read_text()) for path in (run_dir / "rollouts").glob("*/meta.json")]
    assert {each["instance_id"] for each in rollouts} == {task.id}
    infrastructure = {Outcome.SANDBOX_ERROR, Outcome.ENGINE_ERROR, Outcome.GRADER_ERROR}
    assert not {each["outcome"] for each in rollouts} & infrastructure
