"""From a recipe to slime's command line."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, RunSettings
from hone.integrations.slime.options import PATHS, command_line, refusals, slime_options


def recipe(**groups: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "run_dir": "runs/slime",
            "model": {"path": "/models/policy"},
            "engine": {"kind": "sglang", "context_tokens": 4096},
            **groups,
        }
    )


def options(**groups: Any) -> dict[str, Any]:
    return slime_options(
        recipe(**groups), Path("/models/policy"), Path("/run/config.yaml"), Path("/run/checkpoints")
    )


@pytest.mark.parametrize("name", PATHS)
def test_path_of_each_hook_leads_to_it(name: str) -> None:
    module, _, attribute = PATHS[name].rpartition(".")

    assert callable(getattr(importlib.import_module(module), attribute))


def test_sizes_of_the_recipe_reach_slime() -> None:
    found = options(
        groups_per_step=6,
        rollout={"group_size": 4, "concurrent_episodes": 10},
        train={"steps": 9, "batch": {"mini_batches": 2}},
    )

    assert (found["rollout-batch-size"], found["n-samples-per-prompt"]) == (6, 4)
    assert (found["num-rollout"], found["global-batch-size"]) == (9, 12)
    assert found["sglang-server-concurrency"] == 10
    assert found["max-tokens-per-gpu"] == found["rollout-max-context-len"] == 4096
    assert found["sglang-context-length"] == 4096


def test_loss_and_optimiser_are_the_recipes() -> None:
    found = options(
        train={
            "loss": {"clip_low": 0.1, "clip_high": 0.28, "kl_coef": 0.01, "kl_estimator": "k2"},
            "optimizer": {"lr": 3e-4, "schedule": "cosine", "final_lr_fraction": 0.1, "weight_decay": 0.1},
        }
    )

    assert (found["eps-clip"], found["eps-clip-high"], found["eps-clip-c"]) == (0.1, 0.28, 10.0)
    assert (found["use-kl-loss"], found["kl-loss-coef"], found["kl-loss-type"]) == (True, 0.01, "k2")
    assert (found["lr"], found["min-lr"], found["lr-decay-style"]) == (3e-4, pytest.approx(3e-5), "cosine")
    assert found["weight-decay"] == 0.1


@pytest.mark.parametrize(("old_logprobs", "flag"), [("engine", True), ("recomputed", False)])
def test_denominator_of_the_ratio_is_the_recipes(old_logprobs: str, flag: bool) -> None:
    assert options(train={"loss": {"old_logprobs": old_logprobs}})["use-rollout-logprobs"] is flag


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"train": {"algorithm": {"name": "opo"}}}, 'train.algorithm.name = "opo"'),
        ({"train": {"algorithm": {"name": "dr_grpo"}}}, "train.loss.normalisation"),
        ({"train": {"optimizer": {"name": "muon"}}}, 'train.optimizer.name = "muon"'),
        ({"train": {"lora": {"rank": 4}}}, "train.lora"),
        ({"train": {"validate": {"every": 5}}}, "train.validate.every"),
        ({"train": {"batch": {"epochs": 2}}}, "train.batch.epochs = 2"),
        ({"train": {"batch": {"mini_batches": 3}}}, "train.batch.mini_batches = 3"),
        ({"engine": {"kind": "vllm"}}, 'engine.kind = "vllm"'),
        ({"engine": {"kind": "sglang", "urls": ("http://host:1",)}}, "engine.urls"),
        ({"sampling": {"temperature": 0.0}}, "sampling: "),
        ({"rollout": {"max_staleness": 2}}, "rollout.max_staleness = 2"),
        ({"rollout": {"curriculum_visits": 2}}, "rollout.curriculum_visits"),
    ],
)
def test_setting_that_slime_cannot_honour_is_refused(groups: dict[str, Any], sentence: str) -> None:
    (refused,) = refusals(recipe(**groups))

    assert refused.startswith(sentence)
    assert refused.endswith(".")
    with pytest.raises(ConfigError):
        options(**groups)


def test_flags_stand_alone_and_others_with_their_value() -> None:
    assert command_line({"a": True, "b": False, "c": 0.5}) == ["--a", "--c", "0.5"]
