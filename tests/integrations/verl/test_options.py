"""From a recipe to verl's command line."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from hone.config import ConfigError, RunSettings
from hone.integrations.verl.options import Files, command_line, refusals, verl_options

FILES = Files(
    train=Path("/run/train.parquet"),
    validation=Path("/run/val.parquet"),
    agent_loop=Path("/run/agent_loop.yaml"),
    recipe=Path("/run/recipe.toml"),
    output=Path("/run/checkpoints"),
)
MODEL = Path("/models/policy")


def recipe(**groups: Any) -> RunSettings:
    return RunSettings.model_validate(
        {
            "run_dir": "runs/verl",
            "model": {"path": MODEL},
            "engine": {"kind": "vllm", "context_tokens": 4096},
            **groups,
        }
    )


def options(**groups: Any) -> dict[str, Any]:
    return verl_options(recipe(**groups), MODEL, FILES)


def test_every_size_of_the_recipe_reaches_verl() -> None:
    found = options(
        groups_per_step=6,
        rollout={"group_size": 5, "concurrent_episodes": 3},
        sampling={"temperature": 0.7},
        train={"steps": 9, "batch": {"mini_batches": 2, "epochs": 3, "micro_batch_tokens": 9000}},
    )

    rollout, actor = "actor_rollout_ref.rollout", "actor_rollout_ref.actor"
    assert found["data.train_batch_size"] == 6
    assert (found[f"{rollout}.n"], found[f"{rollout}.temperature"]) == (5, 0.7)
    assert found[f"{rollout}.max_model_len"] == found["data.max_response_length"] == 4096
    assert found[f"{rollout}.agent.num_workers"] == 3
    assert (found[f"{actor}.ppo_mini_batch_size"], found[f"{actor}.ppo_epochs"]) == (3, 3)
    assert found[f"{actor}.ppo_max_token_len_per_gpu"] == 9000
    assert found["trainer.total_training_steps"] == 9
    assert found["trainer.v1.trainer_mode"] == "sync"


def test_longest_row_fits_a_pass_of_verl() -> None:
    found = options(train={"batch": {"micro_batch_tokens": 100}})

    assert found["actor_rollout_ref.actor.ppo_max_token_len_per_gpu"] == 4096


def test_loss_and_optimiser_are_the_recipes() -> None:
    found = options(
        train={
            "loss": {"clip_low": 0.1, "clip_high": 0.28, "kl_coef": 0.01, "kl_estimator": "k2"},
            "optimizer": {"lr": 3e-4, "max_grad_norm": 0.5, "beta2": 0.95, "warmup_steps": 4, "eps": 1e-6},
        }
    )

    actor = "actor_rollout_ref.actor"
    names = ("clip_ratio_low", "clip_ratio_high", "clip_ratio_c", "kl_loss_coef", "kl_loss_type")
    assert [found[f"{actor}.{name}"] for name in names] == [0.1, 0.28, 10.0, 0.01, "k2"]
    optim = ("lr", "clip_grad", "betas", "lr_warmup_steps", "override_optimizer_config")
    expected = [3e-4, 0.5, [0.9, 0.95], 4, {"eps": 1e-6}]
    assert [found[f"{actor}.optim.{name}"] for name in optim] == expected
    assert found[f"{actor}.use_kl_loss"] is True


@pytest.mark.parametrize(("old_logprobs", "bypass"), [("engine", True), ("recomputed", False)])
def test_denominator_of_the_ratio_is_the_recipes(old_logprobs: str, bypass: bool) -> None:
    found = options(train={"loss": {"old_logprobs": old_logprobs}})

    assert found["algorithm.rollout_correction.bypass_mode"] is bypass


def test_truncated_weights_of_tokens_are_verls_correction() -> None:
    found = options(
        train={"loss": {"old_logprobs": "recomputed"}, "corrections": {"kind": "truncate", "high": 3.0}}
    )

    assert found["algorithm.rollout_correction.rollout_is"] == "token"
    assert found["algorithm.rollout_correction.rollout_is_threshold"] == 3.0


def test_dr_grpo_is_grpo_without_deviation_over_a_constant() -> None:
    found = options(train={"algorithm": {"name": "dr_grpo"}})

    assert found["algorithm.norm_adv_by_std_in_grpo"] is False
    assert found["actor_rollout_ref.actor.loss_agg_mode"] == "seq-mean-token-sum-norm"
    assert found["actor_rollout_ref.actor.loss_scale_factor"] == 3000


def test_staleness_is_separate_async_that_waits_for_late_rollouts() -> None:
    found = options(groups_per_step=8, rollout={"max_staleness": 2}, train={"batch": {"mini_batches": 4}})

    assert found["trainer.v1.trainer_mode"] == "separate_async"
    assert found["trainer.v1.sampler.max_off_policy_threshold"] == 3
    assert found["trainer.v1.sampler.max_off_policy_strategy"] == "wait"
    steps = found["trainer.v1.separate_async.parameter_sync_step"]
    assert steps * found["actor_rollout_ref.actor.ppo_mini_batch_size"] == found["data.train_batch_size"]
    assert found["+ray_kwargs.ray_init.runtime_env.env_vars.VERL_LOGGING_LEVEL"] == "WARN"


@pytest.mark.parametrize(
    ("groups", "sentence"),
    [
        ({"train": {"algorithm": {"name": "rloo"}}}, 'train.algorithm.name = "rloo"'),
        ({"train": {"loss": {"normalisation": "group"}}}, 'train.loss.normalisation = "group"'),
        ({"train": {"optimizer": {"name": "muon"}}}, 'train.optimizer.name = "muon"'),
        ({"train": {"optimizer": {"schedule": "linear"}}}, 'train.optimizer.schedule = "linear"'),
        ({"train": {"optimizer": {"weight_decay": 0.1}}}, "train.optimizer.weight_decay = 0.1"),
        ({"train": {"batch": {"mini_batches": 3}}}, "train.batch.mini_batches = 3"),
        (
            {"train": {"loss": {"old_logprobs": "recomputed"}, "corrections": {"kind": "mask"}}},
            'train.corrections.kind = "mask"',
        ),
        ({"train": {"lora": {"targets": ("experts",)}}}, "train.lora.targets"),
        ({"engine": {"kind": "local"}}, 'engine.kind = "local"'),
        ({"engine": {"kind": "vllm", "urls": ("http://host:1",)}}, "engine.urls"),
        ({"sampling": {"top_p": 0.9}}, "sampling: "),
        ({"rollout": {"replace_constant_groups": 2}}, "rollout.replace_constant_groups = 2"),
        ({"rollout": {"curriculum_visits": 2}}, "rollout.curriculum_visits"),
        ({"rollout": {"max_staleness": 1, "partial": False}}, "rollout.partial = false"),
    ],
)
def test_setting_that_verl_cannot_honour_is_refused(groups: dict[str, Any], sentence: str) -> None:
    (refused,) = refusals(recipe(**groups))

    assert refused.startswith(sentence)
    assert refused.endswith(".")
    assert ": " in refused or "so " in refused
    with pytest.raises(ConfigError):
        options(**groups)


def test_all_refusals_are_told_at_once() -> None:
    groups = {"sampling": {"top_k": 5}, "train": {"optimizer": {"weight_decay": 0.1}}}

    with pytest.raises(ConfigError, match=r"weight_decay.*sampling: "):
        options(**groups)


def test_scores_of_turns_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"progress\.enabled scores single turns"):
        options(progress={"enabled": True, "coefficient": 0.0})


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (True, "a=true"),
        (None, "a=null"),
        (0.25, "a=0.25"),
        ([0.9, "x"], "a=[0.9,x]"),
        ({"eps": 1e-8}, "a={eps:1e-08}"),
        (Path("/runs/a_1.b"), "a=/runs/a_1.b"),
        (Path("/my runs/it's"), "a='/my runs/it\\'s'"),
        ("all-linear", "a=all-linear"),
    ],
)
def test_values_are_written_as_hydra_reads_them(value: Any, text: str) -> None:
    assert command_line({"a": value}) == [text]


def test_command_line_survives_a_shell() -> None:
    arguments = command_line(options())

    assert shlex.split(shlex.join(arguments)) == arguments
