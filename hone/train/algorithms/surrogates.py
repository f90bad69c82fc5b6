"""Surrogates: the loss of a token from its log-probabilities and its advantage.

A surrogate is linear in the size of the advantage: a factor of the loss can be folded into the advantage.
Every ratio is capped before it is computed, so gradients are finite for any finite log-probabilities.
The functions are written with methods of tensors; importing this file does not import torch.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from hone.types import Float32

if TYPE_CHECKING:
    from torch import Tensor


class Bounds(NamedTuple):
    """Bounds of the ratio."""

    low: float
    high: float
    cap: float  # above `high`; see `clipped`


@dataclass(frozen=True, slots=True, kw_only=True)
class Surrogate:
    """A loss per token, and where it has no gradient."""

    loss: Callable[[Tensor, Tensor, Tensor, Bounds], Tensor]  # logprobs, old logprobs, advantages; all [N]
    is_clipped: Callable[[Float32, Float32, Bounds], npt.NDArray[np.bool_]]  # ratios, advantages; both [N]


def capped_ratio(logprobs: Tensor, old_logprobs: Tensor, cap: float) -> Tensor:
    """Return exp(logprobs - old_logprobs), at most `cap`; the gradient is 0 where it is capped."""
    return (logprobs - old_logprobs).clamp(max=math.log(cap)).exp()


def clipped(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, bounds: Bounds) -> Tensor:
    """Return the clipped surrogate of PPO (arXiv:1707.06347, equation 7), negated; [N] -> [N].

    ratio = exp(logprobs - old_logprobs)
    loss = -min(ratio * A, clip(ratio, low, high) * A)    for A >= 0
    loss = -max(min(ratio * A, clip(ratio, low, high) * A), cap * A)    for A < 0

    The two clips differ as in DAPO (arXiv:2503.14476, section 3.1); the second bound of negative advantages
    is the dual clip (arXiv:1912.09729, equation 8). At ratio 1 the gradient is that of -A * logprobs.
    """
    ratio = capped_ratio(logprobs, old_logprobs, bounds.cap)
    return -(ratio * advantages).minimum(ratio.clamp(bounds.low, bounds.high) * advantages)


def _is_clipped(ratios: Float32, advantages: Float32, bounds: Bounds) -> npt.NDArray[np.bool_]:
    too_high = np.where(advantages > 0, ratios > bounds.high, ratios > bounds.cap)
    return np.where(advantages > 0, too_high, too_high | (ratios < bounds.low)) & (advantages != 0)


def truncated(logprobs: Tensor, old_logprobs: Tensor, advantages: Tensor, bounds: Bounds) -> Tensor:
    """Return the surrogate of CISPO (arXiv:2506.13585, equations 4 and 5), negated; [N] -> [N].

    loss = -stop_gradient(clip(ratio, low, high)) * A * logprobs

    Every token keeps a gradient; the truncated ratio is only its weight.
    """
    weight = capped_ratio(logprobs, old_logprobs, bounds.cap).clamp(bounds.low, bounds.high).detach()
    return -weight * advantages * logprobs


def _is_truncated(ratios: Float32, advantages: Float32, bounds: Bounds) -> npt.NDArray[np.bool_]:
    return ((ratios > bounds.high) | (ratios < bounds.low)) & (advantages != 0)


CLIPPED = Surrogate(loss=clipped, is_clipped=_is_clipped)
TRUNCATED = Surrogate(loss=truncated, is_clipped=_is_truncated)
SURROGATES = {"clipped": CLIPPED, "truncated": TRUNCATED}
