"""Small real models, tokenizers and trainers for the tests of this room."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch
from tokenizers import Tokenizer, models
from transformers import PreTrainedModel, PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

from hone.train.algorithms.grpo import GrpoSettings
from hone.train.algorithms.registry import AnyAlgorithmSettings
from hone.train.corrections import AnyCorrectionSettings, NoCorrectionSettings
from hone.train.in_process import InProcessLearner
from hone.train.loss import CrossEntropy
from hone.train.settings import BatchSettings, LossSettings, OptimizerSettings, SftSettings, TrainSettings
from hone.train.trainer import Trainer, policy_trainer
from hone.types import Sample
from tests.train.trajectories import VOCABULARY


def tiny_model(seed: int = 0, dtype: torch.dtype = torch.float32) -> PreTrainedModel:
    torch.manual_seed(seed)
    config = Qwen3Config(
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        head_dim=16,
        max_position_embeddings=256,
        tie_word_embeddings=True,
        initializer_range=0.2,  # wide, so that log-probabilities differ from uniform
    )
    return Qwen3ForCausalLM(config).to(dtype).eval()


def tokenizer() -> PreTrainedTokenizerFast:
    vocabulary = {f"w{i}": i for i in range(VOCABULARY)}
    backend = Tokenizer(models.WordLevel(vocabulary, unk_token="w0"))
    return PreTrainedTokenizerFast(tokenizer_object=backend, pad_token="w0", eos_token="w1")


def with_logprobs(
    samples: Sequence[Sample], model: PreTrainedModel, temperature: float = 1.0
) -> list[Sample]:
    """The samples with the log-probabilities of a plain forward pass, one sample at a time."""
    result: list[Sample] = []
    for sample in samples:
        ids = torch.from_numpy(sample.tokens.astype(np.int64))[None]
        with torch.no_grad():
            logits = model(input_ids=ids, use_cache=False).logits[0, :-1]
        every = torch.log_softmax(logits / temperature, -1)
        chosen = every.gather(-1, ids[0, 1:, None])[:, 0].numpy()
        logprobs = np.concatenate([[0], chosen]).astype(np.float32)
        result.append(replace(sample, logprobs=np.where(sample.weight > 0, logprobs, 0).astype(np.float32)))
    return result


def noisy(samples: Sequence[Sample], scale: float, seed: int = 1) -> list[Sample]:
    """The samples as if somewhat different weights had sampled them."""
    rng = np.random.default_rng(seed)
    return [
        replace(
            s, logprobs=(s.logprobs + (s.weight > 0) * rng.normal(0, scale, len(s.tokens))).astype(np.float32)
        )
        for s in samples
    ]


def trainer_of(
    model: PreTrainedModel,
    *,
    loss: LossSettings | None = None,
    batch: BatchSettings | None = None,
    optimizer: OptimizerSettings | None = None,
    temperature: float = 1.0,
    reference: PreTrainedModel | None = None,
    algorithm: AnyAlgorithmSettings | None = None,
    corrections: AnyCorrectionSettings | None = None,
) -> Trainer:
    settings = TrainSettings(
        steps=100,
        algorithm=algorithm or GrpoSettings(),
        corrections=corrections or NoCorrectionSettings(),
        loss=loss or LossSettings(),
        batch=batch or BatchSettings(),
        optimizer=optimizer or OptimizerSettings(lr=1e-3, max_grad_norm=1e9),
    )
    return policy_trainer(model, settings, temperature=temperature, reference=reference)


def step_with_gradients(
    trainer: Trainer, samples: Sequence[Sample]
) -> tuple[dict[str, float], list[list[torch.Tensor]]]:
    """The metrics of a step, and the gradients that each of its optimiser steps saw."""
    seen: list[list[torch.Tensor]] = []

    def look(*_: object) -> None:
        seen.append([p.grad.clone() for p in learner_of(trainer).masters if p.grad is not None])

    handle = learner_of(trainer).optimizers[-1].register_step_pre_hook(look)
    metrics = trainer.step(samples)
    handle.remove()
    return metrics, seen


def learner_of(trainer: Trainer) -> InProcessLearner:
    assert isinstance(trainer.learner, InProcessLearner)
    return trainer.learner


def model_of(trainer: Trainer) -> PreTrainedModel:
    return learner_of(trainer).model


def sft_learner(model: PreTrainedModel, settings: SftSettings) -> InProcessLearner:
    return InProcessLearner(model, objective=CrossEntropy(), optimizer=settings.optimizer, passes=settings)
