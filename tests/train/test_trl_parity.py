"""The loss and its gradients beside TRL's, on the same ragged multi-turn batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import PreTrainedModel

from hone.train.settings import LossSettings, TrainSettings
from hone.train.trainer import policy_trainer
from hone.types import Sample
from tests.train.examples import model_of, noisy, step_with_gradients, tiny_model, tokenizer, with_logprobs
from tests.train.trajectories import multi_turn_samples

pytestmark = [
    pytest.mark.model,
    pytest.mark.filterwarnings("ignore:.gradient_checkpointing. is deprecated"),  # TRL's own default
]
LONGEST = 48  # tokens of a completion, what Dr. GRPO divides by


def trl_inputs(samples: Sequence[Sample], reference: Sequence[Sample]) -> dict[str, torch.Tensor]:
    """The batch in TRL's layout: prompts padded on the left, completions on the right, other roles masked."""
    starts = [int(np.flatnonzero(s.weight)[0]) for s in samples]
    prompt, width = max(starts), max(len(s.tokens) - at for s, at in zip(samples, starts, strict=True))

    def blank(columns: int, kind: torch.dtype = torch.long) -> torch.Tensor:
        return torch.zeros(len(samples), columns, dtype=kind)

    inputs: dict[str, torch.Tensor] = {
        "prompt_ids": blank(prompt),
        "prompt_mask": blank(prompt),
        "completion_ids": blank(width),
        "completion_mask": blank(width),
        "tool_mask": blank(width),
        "old_per_token_logps": blank(width, torch.float32),
        "ref_per_token_logps": blank(width, torch.float32),
        "advantages": torch.tensor([float(s.advantage[at]) for s, at in zip(samples, starts, strict=True)]),
        "num_items_in_batch": torch.tensor(float(sum(s.weight.sum() for s in samples))),
    }
    for row, (s, r, at) in enumerate(zip(samples, reference, starts, strict=True)):
        end = len(s.tokens) - at
        inputs["prompt_ids"][row, prompt - at :] = torch.from_numpy(s.tokens[:at].astype(np.int64))
        inputs["prompt_mask"][row, prompt - at :] = 1
        inputs["completion_ids"][row, :end] = torch.from_numpy(s.tokens[at:].astype(np.int64))
        inputs["completion_mask"][row, :end] = 1
        inputs["tool_mask"][row, :end] = torch.from_numpy((s.weight[at:] > 0).astype(np.int64))
        inputs["old_per_token_logps"][row, :end] = torch.from_numpy(s.logprobs[at:])
        inputs["ref_per_token_logps"][row, :end] = torch.from_numpy(r.logprobs[at:])
    return inputs


def trl_trainer(model: PreTrainedModel, out: Path, **config: Any) -> Any:
    """TRL's trainer of `model`; it changes no weight."""
    if config.get("beta"):  # TRL loads its own reference model; the test hands in the numbers of another
        model.save_pretrained(out / "reference")
        model.config._name_or_path = str(out / "reference")
    from datasets import Dataset
    from trl import import_utils

    import_utils.is_vllm_available = lambda *_, **__: False  # not needed here, and seconds to import
    from trl import GRPOConfig, GRPOTrainer  # on use: seconds of every worker that collects this file

    trainer = GRPOTrainer(
        model=model,
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=str(out),
            use_cpu=True,
            report_to=[],
            per_device_train_batch_size=2,
            num_generations=2,
            max_completion_length=LONGEST,
            bf16=False,
            use_bias_correction_kl=False,  # ours is the plain estimator of the GRPO paper
            **{"delta": LossSettings().dual_clip, **config},  # TRL has no bound by default
        ),
        train_dataset=Dataset.from_list([{"prompt": "w2 w3"}]),
        processing_class=tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    return trainer


def trl_loss(trainer: Any, inputs: dict[str, torch.Tensor]) -> tuple[float, list[torch.Tensor]]:
    trainer.use_vllm = "importance_sampling_ratio" in inputs  # only then the loss is multiplied by it
    trainer.model.zero_grad()
    loss = trainer._compute_loss(trainer.model, inputs)
    loss.backward()
    return loss.item(), [p.grad for p in trainer.model.parameters() if p.grad is not None]


def trl_importance(
    samples: Sequence[Sample],
    trainer: Sequence[Sample],
    inputs: dict[str, torch.Tensor],
    mode: str,
    **bounds: float,
) -> torch.Tensor:
    """TRL's ratio between engine and trainer, as its `vllm_importance_sampling_mode`; [rows, width or 1]."""
    mask = inputs["completion_mask"] * inputs["tool_mask"]
    difference = torch.zeros(mask.shape)
    for row, (engine, own) in enumerate(zip(samples, trainer, strict=True)):
        at = int(np.flatnonzero(engine.weight)[0])
        gap = torch.from_numpy(own.logprobs[at:] - engine.logprobs[at:])
        difference[row, : len(gap)] = gap * mask[row, : len(gap)]
    level, _, rule = mode.partition("_")
    ratio = torch.exp(difference.sum(-1, keepdim=True) if level == "sequence" else difference)
    low, high = bounds.get("low", -torch.inf), bounds["high"]
    if rule == "truncate":
        return ratio.clamp(low, high)
    return ratio.masked_fill((ratio < low) | (ratio > high), 0.0)


LOSSES: list[tuple[dict[str, Any], dict[str, Any]]] = [  # TRL's options and ours
    ({"loss_type": "grpo"}, {"loss": {"normalisation": "trajectory"}}),
    ({"loss_type": "bnpo"}, {"loss": {"normalisation": "token"}}),
    ({"loss_type": "dapo", "epsilon_high": 0.28}, {"algorithm": {"name": "dapo"}}),
    (
        {"loss_type": "dr_grpo", "epsilon": 0.1, "epsilon_high": 0.3},
        {
            "algorithm": {"name": "dr_grpo"},
            "loss": {
                "normalisation": "constant",
                "constant_tokens": LONGEST,
                "clip_low": 0.1,
                "clip_high": 0.3,
            },
        },
    ),
    ({"loss_type": "grpo", "beta": 0.05}, {"loss": {"normalisation": "trajectory", "kl_coef": 0.05}}),
    ({"loss_type": "dapo", "beta": 0.1, "temperature": 0.7}, {"loss": {"kl_coef": 0.1}}),
    ({"loss_type": "bnpo", "temperature": 1.3}, {"algorithm": {"name": "rloo"}}),
    ({"loss_type": "bnpo", "delta": 1.4}, {"loss": {"dual_clip": 1.4}}),
    (
        {"loss_type": "grpo", "importance_sampling_level": "sequence", "epsilon": 0.03, "epsilon_high": 0.04},
        {"algorithm": {"name": "gspo"}, "loss": {"clip_low": 0.03, "clip_high": 0.04}},
    ),
    (
        {"loss_type": "cispo", "epsilon_high": 1.3},
        {"algorithm": {"name": "cispo"}, "loss": {"clip_high": 0.3}},
    ),
]


def compare(
    settings: TrainSettings, trl: Any, samples: Sequence[Sample], other: PreTrainedModel, temperature: float
) -> dict[str, float]:
    """Hold loss and gradients of one step to TRL's; return the metrics of the step."""
    inputs = trl_inputs(samples, with_logprobs(samples, other, temperature))
    ours = policy_trainer(
        copy.deepcopy(trl.model).eval(),
        settings,
        temperature=temperature,
        reference=other if settings.loss.kl_coef else None,
    )
    metrics, [mine] = step_with_gradients(ours, samples)
    loss, theirs = trl_loss(trl, inputs)
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    require_close(mine, theirs)
    return metrics


def require_close(mine: Sequence[torch.Tensor], theirs: Sequence[torch.Tensor]) -> None:
    assert len(mine) == len(theirs)
    for one, other in zip(mine, theirs, strict=True):
        assert float((one - other).abs().max()) <= 1e-5


def settings_of(hone: dict[str, Any], **batch: int) -> TrainSettings:
    return TrainSettings.model_validate(
        {
            "algorithm": {"name": "grpo"},
            "optimizer": {"lr": 1e-3, "max_grad_norm": 1e9},
            "batch": {"micro_batch_tokens": 150, **batch},
            **hone,
        }
    )


@pytest.mark.parametrize(("trl", "hone"), LOSSES, ids=json.dumps)
def test_loss_and_gradients_equal_those_of_trl(
    trl: dict[str, Any], hone: dict[str, Any], tmp_path: Path
) -> None:
    temperature = trl.get("temperature", 1.0)
    model, other = tiny_model(0), tiny_model(1)
    samples = noisy(with_logprobs(multi_turn_samples(10), model, temperature), 0.3)
    trainer = trl_trainer(model, tmp_path, **trl)
    metrics = compare(settings_of(hone), trainer, samples, other, temperature)
    assert 0.02 < metrics["clip_fraction"] < 0.98
    _, gradients = trl_loss(trainer, trl_inputs(samples, samples))
    assert max(float(g.abs().max()) for g in gradients) > 1e-2  # there is something to compare


@pytest.mark.full
@pytest.mark.parametrize(("trl", "hone"), LOSSES, ids=json.dumps)
def test_drawn_batches_give_the_losses_and_gradients_of_trl(
    trl: dict[str, Any], hone: dict[str, Any], tmp_path: Path
) -> None:
    temperature = trl.get("temperature", 1.0)
    other = tiny_model(1)
    trainer = trl_trainer(tiny_model(0), tmp_path, **trl)
    plain = copy.deepcopy(trainer.model).eval()

    @settings(max_examples=10, deadline=None)
    @given(st.integers(1, 8), st.integers(0, 999), st.floats(0, 1), st.sampled_from([1.0, -1.0, 0.01]))
    def check(count: int, seed: int, noise: float, size: float) -> None:
        drawn = [replace(s, advantage=s.advantage * size) for s in multi_turn_samples(count, seed=seed)]
        compare(
            settings_of(hone),
            trainer,
            noisy(with_logprobs(drawn, plain, temperature), noise),
            other,
            temperature,
        )

    check()


@pytest.mark.parametrize(
    ("mode", "bounds", "corrections"),
    [
        ("token_truncate", {"high": 1.2}, {"kind": "truncate", "high": 1.2}),
        ("token_mask", {"low": 0.8, "high": 1.3}, {"kind": "mask", "low": 0.8, "high": 1.3}),
        ("sequence_truncate", {"high": 1.5}, {"kind": "truncate", "level": "sequence", "high": 1.5}),
        (
            "sequence_mask",
            {"low": 0.4, "high": 3.0},
            {"kind": "mask", "level": "sequence", "low": 0.4, "high": 3.0},
        ),
    ],
)
def test_corrected_losses_equal_those_of_trl_in_both_epochs(
    mode: str, bounds: dict[str, float], corrections: dict[str, Any], tmp_path: Path
) -> None:
    start = tiny_model(0)
    own = with_logprobs(multi_turn_samples(10), start)
    samples = noisy(own, 0.3)
    hone = {"loss": {"old_logprobs": "recomputed"}, "corrections": corrections}
    once = policy_trainer(copy.deepcopy(start), settings_of(hone), temperature=1.0)
    metrics, _ = step_with_gradients(once, samples)
    assert metrics["corrections/masked" if "mask" in mode else "corrections/truncated"] > 0.05
    twice = policy_trainer(copy.deepcopy(start), settings_of(hone, epochs=2), temperature=1.0)
    _, gradients = step_with_gradients(twice, samples)
    inputs = trl_inputs(own, own)  # the proximal policy is the trainer's before the first step
    inputs["importance_sampling_ratio"] = trl_importance(samples, own, inputs, mode, **bounds)
    for model, mine in zip((start, model_of(once)), gradients, strict=True):
        _, theirs = trl_loss(trl_trainer(model, tmp_path, loss_type="dapo"), inputs)
        require_close(mine, theirs)
