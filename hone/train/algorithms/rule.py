"""The loss rule of a run: an algorithm's defaults under the settings of the loss."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol

from hone.train.algorithms.contract import AlgorithmSettings, Critic, Normalisation
from hone.train.algorithms.surrogates import Bounds, Surrogate


class LossOptions(Protocol):
    """The part of `hone.train.settings.LossSettings` that overrides an algorithm's defaults."""

    @property
    def clip_low(self) -> float | None: ...
    @property
    def clip_high(self) -> float | None: ...
    @property
    def dual_clip(self) -> float: ...
    @property
    def normalisation(self) -> Normalisation | None: ...
    @property
    def constant_tokens(self) -> int | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRule:
    """How ratios and advantages become the loss of a mini-batch; picklable."""

    surrogate: Surrogate
    bounds: Bounds
    sequence_ratio: bool
    normalisation: Normalisation
    constant_tokens: int | None
    critic: Critic | None


def loss_rule(settings: AlgorithmSettings, loss: LossOptions) -> LossRule:
    """Return the rule of an algorithm. Raises ValueError for an option of `loss` that it does not use."""
    algorithm = settings.algorithm
    for name in ("clip_low", "clip_high"):
        if getattr(algorithm, name) is None and getattr(loss, name) is not None:
            raise ValueError(
                f"train.loss.{name} has no effect with train.algorithm ({settings.named}): remove it"
            )
    low = algorithm.clip_low if loss.clip_low is None else loss.clip_low
    high = algorithm.clip_high if loss.clip_high is None else loss.clip_high
    bounds = Bounds(
        low=0.0 if low is None else 1 - low,
        high=math.inf if high is None else 1 + high,
        cap=loss.dual_clip,
    )
    if high is not None and bounds.cap < bounds.high:
        raise ValueError(
            f"train.loss.dual_clip is {loss.dual_clip:g}, below 1 + clip_high ({bounds.high:g}): raise it"
        )
    chosen = loss.normalisation or algorithm.normalisation
    return LossRule(
        surrogate=algorithm.surrogate,
        bounds=bounds,
        sequence_ratio=algorithm.sequence_ratio,
        normalisation=chosen,
        constant_tokens=loss.constant_tokens if loss.normalisation else algorithm.constant_tokens,
        critic=algorithm.critic,
    )
