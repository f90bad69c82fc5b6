"""Corrections of the difference between engine and trainer: importance weights of tokens or rollouts.

    weight = p(trainer before the first optimiser step) / p(engine)

The engine's probability of a sampled token is not the trainer's: kernels and precisions differ, and stale
tokens were sampled by older weights. With `train.loss.old_logprobs = "recomputed"` the clipped ratio is
p(now) / p(before the first optimiser step), and the weight multiplies its loss. Together they are the
decoupled objective of PPO (AReaL, arXiv:2505.24298, equation 5): the engine's probabilities are the behaviour
policy, the trainer's the proximal policy.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from hone.settings import Settings

Float64 = npt.NDArray[np.float64]
Level = Literal["token", "sequence", "geometric"]
LARGEST_LOG = 50.0  # of a weight, before its bounds: squares of weights stay finite

LEVELS: Mapping[Level, Callable[[Float64], Float64]] = {
    "token": lambda logs: logs,
    "sequence": lambda logs: np.full_like(logs, logs.sum()),
    "geometric": lambda logs: np.full_like(logs, logs.mean()),
}
"""Level -> from the logarithms of a rollout's token weights, [n], to those at the level, [n]."""


class NoCorrectionSettings(Settings):
    """No correction."""

    kind: Literal["none"] = "none"
    """`none`: no correction. `truncate`: truncated importance sampling (TIS): a weight above `high` becomes
    `high`. `mask`: masked importance sampling (IcePop): a weight outside `low` to `high` becomes 0."""


class CorrectionSettings(Settings):
    """What the corrections have."""

    level: Level = "token"
    """What has a weight: each `token`, or all trained tokens of a rollout together: the product of their
    weights (`sequence`) or its geometric mean (`geometric`)."""

    def weights(self, logs: Float64) -> Float64:
        """Return the weights of a rollout's trained tokens at `level`, from the logarithms of theirs; [n]."""
        return np.exp(np.clip(LEVELS[self.level](logs), -LARGEST_LOG, LARGEST_LOG))

    def bounded(self, weights: Float64) -> Float64:
        """Return the factors of the loss from the weights; [n]."""
        raise NotImplementedError


class TruncateSettings(CorrectionSettings):
    """Truncated importance sampling (Yao et al. 2025, "Your efficient RL framework secretly brings you
    off-policy RL training"): min(weight, high)."""

    kind: Literal["truncate"] = "truncate"

    high: float = Field(default=2.0, gt=0)
    """Largest weight; a larger one becomes this (`truncate`) or 0 (`mask`, whose default is 5)."""

    def bounded(self, weights: Float64) -> Float64:
        return np.minimum(weights, self.high)


class MaskSettings(CorrectionSettings):
    """Masked importance sampling (IcePop, arXiv:2510.18855, equation 3): weight if low <= weight <= high, or
    else 0."""

    kind: Literal["mask"] = "mask"

    low: float = Field(default=0.5, ge=0)
    """Smallest weight; a smaller one becomes 0."""

    high: float = Field(default=5.0, gt=0)
    """Largest weight; a larger one becomes 0."""

    def bounded(self, weights: Float64) -> Float64:
        return np.where((weights >= self.low) & (weights <= self.high), weights, 0.0)

    @model_validator(mode="after")
    def _bounds_are_ordered(self) -> Self:
        if self.low >= self.high:
            raise ValueError(f"low is {self.low:g}, and high {self.high:g}: set low below high")
        return self


AnyCorrectionSettings = Annotated[
    NoCorrectionSettings | TruncateSettings | MaskSettings, Field(discriminator="kind")
]


def effective_sample_size(weights: Float64) -> float:
    """Return (sum w)^2 / sum w^2 / n of weights [n]: the share of samples that they are worth, in (0, 1]."""
    return float(weights.sum() ** 2 / np.square(weights).sum() / len(weights))
