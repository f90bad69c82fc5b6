"""Memory and operations of a learner's device."""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import resource
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch

from hone.train.batches import MicroBatch
from hone.train.learner import Usage
from hone.train.passes import CostModel
from hone.utils.gpus import known_speed

if TYPE_CHECKING:
    from transformers import PreTrainedModel

GIB = 1 << 30


def training_flops(
    batches: Iterable[MicroBatch], cost: CostModel, head_parameters: int, *, adapters: bool
) -> float:
    """Return the operations of forward and backward passes, without recomputation.

    6 per weight and token, as Kaplan et al. count (arXiv:2001.08361), or 4 with adapters, whose base weights
    have no gradient; 12 per layer, query width and visible pair of attention.
    """
    per_weight = 4 if adapters else 6
    return sum(
        per_weight * cost.layers * cost.layer_parameters * len(batch.forest.tokens)
        + per_weight * head_parameters * len(batch.targets)
        + 12 * cost.layers * cost.attention_width * batch.forest.visible_pairs
        for batch in batches
    )


def head_parameters(model: PreTrainedModel) -> int:
    """Return the number of weights of the output head."""
    config = model.config.get_text_config()
    return int(config.vocab_size * config.hidden_size)


def device_usage(device: torch.device) -> Usage:
    """Return the usage of this process's device."""
    if device.type != "cuda":
        return Usage(
            peak_memory_gib=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / GIB, peak_flops=None
        )
    speed = known_speed(torch.cuda.get_device_name(device))
    return Usage(
        peak_memory_gib=torch.cuda.max_memory_allocated(device) / GIB,
        peak_flops=None if speed is None else speed.flops,
    )
