"""Models are trained on demonstrations and rollouts in the image of a data set's rows."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from hone.outcomes import Outcome
from hone.tasks.files import import_rows
from hone.tasks.formats import save
from hone.train.metrics import read_metrics
from hone.types import Task
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
    done = hone("train", str(recipe), "--set", f"run_dir={run_dir}", check=False)
    assert (done.returncode, "nothing was learnt" in done.stderr) == (1, True), (
        "so small a model solves nothing"
    )
    demonstrations = [json.loads(line) for line in (run_dir / "demonstrations.jsonl").open()]
    assert len(demonstrations) == 4
    (metrics,) = read_metrics(run_dir)
    assert (metrics["rollouts"], metrics["groups"]) == (2, 1)
    stored = [json.loads(path.read_text()) for path in (run_dir / "rollouts").glob("*/meta.json")]
    assert [each["instance_id"] for each in stored] == [stored[0]["instance_id"]] * 2
    assert all(each["reward"] == -1.0 for each in stored), "a fault of the infrastructure has no reward"


DEMONSTRATIONS, GROUPS = 48, 2
LEARNS = """
makes_model = true
groups_per_step = 2

[tasks]
source = "{tasks}"
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
rollouts = 48
graded = 4

[demonstrations.agent]
kind = "demonstrator"
prompts = "tiny"
accuracy = 0.5

[engine]
context_tokens = 1024
threads = 1

[sampling]
max_tokens = 64

[sandbox]
cache_dir = "{cache}"

[sft]
epochs = 60
batch_size = 8
optimizer = {{ lr = 3e-3, warmup_steps = 5 }}

[rollout]
group_size = 8

[train]
steps = 1
"""


def with_fixes(task: Task) -> Task:
    """Return the task of a row with what a demonstrator may do: the fix, or one that the tests refuse."""
    path = "calc/__init__.py"
    fixes = [
        {"command": f"sed -i 's/a - b/a {sign} b/' {path}", "path": path, "right": sign == "+"}
        for sign in "+*"
    ]
    return dataclasses.replace(task, metadata={**task.metadata, "fixes": fixes})


def test_step_in_the_image_updates_the_weights(tmp_path: Path) -> None:
    """The model has learned a right and a wrong fix, so that the rollouts of a group differ in reward."""
    from transformers import AutoModelForCausalLM

    cache, tasks, recipe = tmp_path / "cache", tmp_path / "tasks.jsonl", tmp_path / "recipe.toml"
    row, _ = import_family(swe_bench_5, write_lower_layers(tmp_path, "3.9"), cache, tmp_path)
    rows = [
        {**row, "instance_id": f"me__calc-{number}", "problem_statement": f"add subtracts ({number})"}
        for number in range(DEMONSTRATIONS + GROUPS)
    ]
    save(map(with_fixes, import_rows(rows).tasks), tasks)
    recipe.write_text(LEARNS.format(tasks=tasks, cache=cache))
    run_dir = tmp_path / "run"
    hone("train", str(recipe), "--set", f"run_dir={run_dir}")
    stored = [json.loads(path.read_text()) for path in (run_dir / "rollouts").glob("*/meta.json")]
    assert len(stored) == 8 * GROUPS
    rewards = {(each["outcome"], each["reward"]) for each in stored}
    assert {reward for _, reward in rewards} == {1.0, -1.0}
    assert [outcome for outcome, reward in rewards if reward == 1.0] == [Outcome.RESOLVED]
    (metrics,) = read_metrics(run_dir)
    assert metrics["grad_norm"] > 0
    (checkpoint,) = (run_dir / "checkpoints").iterdir()
    before, after = map(AutoModelForCausalLM.from_pretrained, (run_dir / "start", checkpoint))
    moved = [not torch.equal(p, q) for p, q in zip(before.parameters(), after.parameters(), strict=True)]
    assert any(moved)
