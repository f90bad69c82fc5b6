"""The loss and its gradients beside TRL's, on the same ragged multi-turn batch."""

from __future__ import annotations

import copy
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import PreTrainedModel

from hone.train.settings import BatchSettings, LossSettings
from hone.types import Sample
from tests.train.examples import noisy, step_with_gradients, tiny_model, tokenizer, trainer_of, with_logprobs
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


def trl_loss(
    model: PreTrainedModel, inputs: dict[str, torch.Tensor], out: Path, **config: Any
) -> tuple[float, list[torch.Tensor]]:
    if config.get("beta"):  # TRL loads its own reference model; the test hands in the numbers of another
        model.save_pretrained(out / "reference")
        model.config._name_or_path = str(out / "reference")
    from datasets import Dataset
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
            **config,
        ),
        train_dataset=Dataset.from_list([{"prompt": "w2 w3"}]),
        processing_class=tokenizer(),
    )
    trainer.current_gradient_accumulation_steps = 1
    model.train()
    loss = trainer._compute_loss(model, inputs)
    loss.backward()
    return loss.item(), [p.grad for p in model.parameters() if p.grad is not None]


@pytest.mark.parametrize(
    ("trl", "hone"),
    [
        ({"loss_type": "grpo"}, {"normalisation": "trajectory"}),
        ({"loss_type": "bnpo"}, {"normalisation": "token"}),
        ({"loss_type": "dapo", "epsilon_high": 0.28}, {"normalisation": "token", "clip_high": 0.28}),
        (
            {"loss_type": "dr_grpo", "epsilon": 0.1, "epsilon_high": 0.3},
            {"normalisation": "constant", "constant_tokens": LONGEST, "clip_low": 0.1, "clip_high": 0.3},
        ),
        ({"loss_type": "grpo", "beta": 0.05}, {"normalisation": "trajectory", "kl_coef": 0.05}),
        ({"loss_type": "dapo", "beta": 0.1, "temperature": 0.7}, {"normalisation": "token", "kl_coef": 0.1}),
        ({"loss_type": "bnpo", "temperature": 1.3}, {"normalisation": "token"}),
    ],
    ids=json.dumps,
)
def test_loss_and_gradients_equal_those_of_trl(
    trl: dict[str, Any], hone: dict[str, Any], tmp_path: Path
) -> None:
    temperature = trl.get("temperature", 1.0)
    model, other = tiny_model(0), tiny_model(1)
    samples = noisy(with_logprobs(multi_turn_samples(10), model, temperature), 0.3)
    reference = with_logprobs(samples, other, temperature)
    inputs = trl_inputs(samples, reference)
    trainer = trainer_of(
        copy.deepcopy(model),
        loss=LossSettings.model_validate(hone),
        batch=BatchSettings(micro_batch_tokens=150),
        temperature=temperature,
        reference=other if "kl_coef" in hone else None,
    )
    metrics, [ours] = step_with_gradients(trainer, samples)
    loss, theirs = trl_loss(model, inputs, tmp_path, **trl)
    assert 0.02 < metrics["clip_fraction"] < 0.98
    assert metrics["loss"] == pytest.approx(loss, abs=1e-5)
    assert len(ours) == len(theirs)
    assert max(float(g.abs().max()) for g in theirs) > 1e-2  # there is something to compare
    for mine, his in zip(ours, theirs, strict=True):
        assert float((mine - his).abs().max()) <= 1e-5
