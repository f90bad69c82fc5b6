"""Compare the gradients of a learner at a service with those of the learner in this process.

With betas of 0 and a huge `eps`, a step of Adam is -lr / eps times the gradient, so adapters before and after
a step give the gradient itself.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import PreTrainedModel

from hone.integrations.tinker.learner import TinkerLearner
from hone.train.lora import adapter_tensors
from hone.train.settings import OptimizerSettings
from hone.train.trainer import Trainer
from hone.types import Sample
from tests.train.examples import learner_of, model_of, step_with_gradients

_EPS, _RATE = 1e6, 0.5
DESCENT = OptimizerSettings(lr=_EPS * _RATE, beta1=0.0, beta2=0.0, eps=_EPS, max_grad_norm=float("inf"))
# Matrices that SkyRL computes as one, with one A: its gradient is the sum of theirs.
_FUSED = {"q_proj": "qkv", "k_proj": "qkv", "v_proj": "qkv", "gate_proj": "gate_up", "up_proj": "gate_up"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """The gradients of one optimiser step."""

    error: float  # norm of the difference, relative to that of Hone's gradient
    norm: float  # of Hone's gradient
    lengths: tuple[int, ...]  # of the rows
    logprob_gap: float  # largest difference of a log-probability


def compare_step(service: Trainer, local: Trainer, samples: Sequence[Sample]) -> Compared:
    """Make a step on both sides from the service's adapters; both trainers have the optimiser `DESCENT`."""
    before = downloaded(service)
    load(model_of(local), before)
    there = service.logprobs(samples)
    here = local.logprobs(samples)
    service.step(samples)
    _, (own,) = step_with_gradients(local, samples)
    names = list(learner_of(local).masters.parameters)
    expected = {peft_name(name): gradient for name, gradient in zip(names, own, strict=True)}
    after = downloaded(service)
    found = {name: (before[name] - after[name]) / _RATE for name in before}
    there_parts, here_parts = summed(found, shared=True), summed(expected, shared=False)
    differences = [there_parts[name] - part for name, part in here_parts.items()]
    norm = norm_of(list(here_parts.values()))
    return Compared(
        error=norm_of(differences) / norm,
        norm=norm,
        lengths=tuple(len(sample.tokens) for sample in samples),
        logprob_gap=max(float(abs(a - b).max()) for a, b in zip(there, here, strict=True)),
    )


def norm_of(tensors: Sequence[Tensor]) -> float:
    return float(torch.stack([tensor.double().square().sum() for tensor in tensors]).sum().sqrt())


def peft_name(parameter: str) -> str:
    return f"base_model.model.{parameter.replace('.default', '')}"


def summed(gradients: dict[str, Tensor], *, shared: bool) -> dict[str, Tensor]:
    """Return the gradient of each B, and of each A that fused matrices share.

    `shared`: those of one A are equal, and are not added up.
    """
    result: defaultdict[str, Tensor] = defaultdict(lambda: torch.zeros(()))
    for name in sorted(gradients):
        module = name.split(".")[-3]
        if "lora_A" in name and module in _FUSED:
            key = name.replace(module, _FUSED[module])
            result[key] = gradients[name] if shared else result[key] + gradients[name]
        else:
            result[name] = gradients[name]
    return dict(result)


def downloaded(trainer: Trainer) -> dict[str, Tensor]:
    learner = trainer.learner
    assert isinstance(learner, TinkerLearner)
    return {name: t.detach().clone() for name, t in adapter_tensors(learner.adapted_model())}


def load(model: PreTrainedModel, adapters: dict[str, Tensor]) -> None:
    with torch.no_grad():
        for name, tensor in adapter_tensors(model):
            tensor.copy_(adapters[name])
