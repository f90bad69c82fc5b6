"""Tiny models and rows for the tests of the ranks, and the comparison with one process."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen3Config,
    Qwen3ForCausalLM,
    Qwen3MoeConfig,
    Qwen3MoeForCausalLM,
)

from hone.train.batches import TrainRow
from hone.train.learner import Learner, LearnerSpec, PassReport
from hone.train.loss import Objective, policy_objective
from hone.train.settings import (
    LearnerSettings,
    LossSettings,
    OptimizerSettings,
    ParallelSettings,
    PassSettings,
)
from tests.train.trajectories import VOCABULARY, multi_turn_samples

SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "initializer_range": 0.2,  # wide, so that log-probabilities differ from uniform
}


def make_model(architecture: str) -> PreTrainedModel:
    """A tiny model with random weights, equal for each call: `qwen3` (tied), `llama` or `qwen3_moe`."""
    torch.manual_seed(0)
    match architecture:
        case "qwen3":
            return Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=True))
        case "llama":
            return LlamaForCausalLM(LlamaConfig(**SHAPE))
        case _:
            experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 16}
            return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **experts))


def make_spec(
    folder: Path,
    *,
    architecture: str = "qwen3",
    ranks: int = 2,
    parallel: ParallelSettings | None = None,
    optimizer: OptimizerSettings | None = None,
    objective: Objective | None = None,
    timeout_s: float = 280.0,  # ends a test that would hang, before pytest does
    **spec: Any,
) -> LearnerSpec:
    """The spec of a learner on ranks, of a model that is written into `folder`."""
    path = folder / architecture
    if not path.exists():
        make_model(architecture).save_pretrained(path)
    return LearnerSpec(
        model=path,
        dtype=spec.pop("dtype", "float32"),
        objective=objective or policy_objective(LossSettings(), temperature=0.8),
        optimizer=optimizer or OptimizerSettings(lr=1e-3, max_grad_norm=1.0),
        passes=PassSettings(micro_batch_tokens=100),
        settings=LearnerSettings(
            learner="ranks",
            ranks=ranks,
            parallel=parallel or ParallelSettings(),
            rank_timeout_s=timeout_s,
            **spec,
        ),
    )


def make_rows(count: int = 11, seed: int = 0) -> list[TrainRow]:
    """Ragged rows, an odd number of them; the old log-probabilities are those of the forward pass."""
    samples = multi_turn_samples(count, seed=seed)
    return [TrainRow(sample=s, scale=s.weight / 100, old_logprobs=None) for s in samples]


def routed(rows: list[TrainRow], seed: int) -> list[TrainRow]:
    """The rows with random experts of the model `qwen3_moe`, unknown for some tokens."""
    rng = np.random.default_rng(seed)
    made: list[TrainRow] = []
    for row in rows:
        shape = (len(row.sample.tokens), 2, 4)
        experts = rng.permuted(np.broadcast_to(np.arange(4, dtype=np.int8), shape), axis=2)[..., :2]
        experts[rng.random(len(experts)) < 0.2] = -1
        made.append(replace(row, sample=replace(row.sample, routing=experts)))
    return made


def train_steps(
    learner: Learner, steps: int = 2, lr: float = 1e-3, *, replay: bool = False
) -> tuple[list[PassReport], list[float]]:
    """Two gradients over different rows per step; the reports and the norms. `replay`: with experts."""
    reports: list[PassReport] = []
    norms: list[float] = []
    for step in range(steps):
        for seed in (2 * step, 2 * step + 1):
            rows = make_rows(seed=seed)
            reports.append(learner.forward_backward(routed(rows, seed) if replay else rows))
        norms.append(learner.optim_step(lr))
    return reports, norms


def worst_difference(one: list[PassReport], two: list[PassReport]) -> float:
    """The largest difference of losses, log-probabilities and entropies, relative to the largest value."""
    worst = 0.0
    for a, b in zip(one, two, strict=True):
        worst = max(worst, abs(a.loss - b.loss) / max(abs(b.loss), 1e-3))
        for mine, theirs in ((a.logprobs, b.logprobs), (a.entropies, b.entropies)):
            assert mine is not None
            assert theirs is not None
            flat, other = np.concatenate(mine), np.concatenate(theirs)
            worst = max(worst, float(np.abs(flat - other).max() / np.abs(other).max()))
    return worst
