"""A model is trained on demonstrations and rollouts in the image of a data set's rows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from hone.train.metrics import read_metrics
from tests.e2e.small_run import hone
from tests.families import import_family, swe_bench_5, write_lower_layers

pytestmark = [pytest.mark.e2e, pytest.mark.full, pytest.mark.timeout(1500)]

ROWS = 8
RECIPE = """
makes_model = true
groups_per_step = 1

[tasks]
source = "{rows}"
unproven = true
allow_overlap = true

[tiny_model]
hidden_size = 64
layers = 2
heads = 2
kv_heads = 2
head_dim = 32
intermediate_size = 128

[agent]
prompts = "tiny"

[demonstrations]
rollouts = 4
graded = 4

[demonstrations.agent]
kind = "oracle"
prompts = "tiny"

[engine]
context_tokens = 2048
threads = 1

[sandbox]
cache_dir = "{cache}"

[sft]
epochs = 1
batch_size = 4

[rollout]
group_size = 2

[train]
steps = 1
"""


def test_model_is_trained_on_rollouts_in_the_image(tmp_path: Path) -> None:
    cache, rows, recipe = tmp_path / "cache", tmp_path / "rows.jsonl", tmp_path / "recipe.toml"
    row, _ = import_family(swe_bench_5, write_lower_layers(tmp_path, "3.9"), cache, tmp_path)
    made = [{**row, "instance_id": f"me__calc-{number}"} for number in range(ROWS)]  # of one image
    rows.write_text("".join(json.dumps(each) + "\n" for each in made))
    recipe.write_text(RECIPE.format(rows=rows, cache=cache))
    run_dir = tmp_path / "run"
    hone("train", str(recipe), "--set", f"run_dir={run_dir}")
    demonstrations = [json.loads(line) for line in (run_dir / "demonstrations.jsonl").open()]
    assert len(demonstrations) == 4
    (metrics,) = read_metrics(run_dir)
    assert (metrics["rollouts"], metrics["groups"]) == (2, 1)
    stored = [json.loads(path.read_text()) for path in (run_dir / "rollouts").glob("*/meta.json")]
    assert [each["instance_id"] for each in stored] == [stored[0]["instance_id"]] * 2
    assert all(each["reward"] == -1.0 for each in stored), "a fault of the infrastructure has no reward"
