"""Hone's loss in prime-rl's trainer, named by `loss.import_path` of its configuration.

prime-rl calls it once per sequence and divides the sum by the number of trained tokens.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from hone.train.algorithms.surrogates import SURROGATES, Bounds

if TYPE_CHECKING:
    from torch import Tensor


class LossInputs(Protocol):
    """prime-rl's inputs of one sequence; all tensors are [T]."""

    trainer_logprobs: Tensor
    inference_logprobs: Tensor
    advantages: Tensor
    loss_mask: Tensor
    loss_weights: Tensor | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LossOutputs:
    """What prime-rl reads of a loss function."""

    loss: Tensor  # scalar
    metrics: dict[str, Tensor]


def loss(inputs: LossInputs, *, surrogate: str, low: float, high: float | None, cap: float) -> LossOutputs:
    """Return the sum over the trained tokens of weight x surrogate.

    Args:
        surrogate: a key of SURROGATES.
        low, high, cap: bounds of the ratio, see `hone.train.algorithms.surrogates`; `high` None: none.
    """
    at = inputs.loss_mask
    bounds = Bounds(low=low, high=math.inf if high is None else high, cap=cap)
    new, old = inputs.trainer_logprobs[at], inputs.inference_logprobs[at]
    advantages = inputs.advantages[at]
    losses = SURROGATES[surrogate].loss(new, old, advantages, bounds)
    if inputs.loss_weights is not None:
        losses = losses * inputs.loss_weights[at]
    ratio = (new - old).detach().clamp(max=math.log(cap)).exp()
    outside = (ratio < bounds.low) | (ratio > bounds.high)
    return LossOutputs(loss=losses.sum(), metrics={"outside_bounds": outside.float().mean()})
