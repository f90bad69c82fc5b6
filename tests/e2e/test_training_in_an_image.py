"""A model is trained on graded rollouts of agents in the image of a data set's row."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

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
    row, task = import_family(swe_bench_5, write_lower_layers(tmp_path, "3.9"), cache, tmp_path)
    made = [{**row, "instance_id": f"me__calc-{number}"} for number in range(ROWS)]  # of one image
    rows.write_text("".join(json.dumps(each) + "\n" for each in made))
    recipe.write_text(RECIPE.format(rows=rows, cache=cache))
    run_dir = tmp_path / "run"
    done = hone("train", str(recipe), "--set", f"run_dir={run_dir}")
    print(done.stdout, done.stderr, *sorted(run_dir.rglob("*")), sep="\n")
    assert task.id
