"""DAPO (arXiv:2503.14476, section 3).

    A = (reward + overlong penalty - mean of the group) / standard deviation of the group
    overlong penalty (equation 13): 0 up to `overlong_tokens - overlong_cache` sampled tokens, falls linearly
    to -1 at `overlong_tokens`, and stays there
    loss: PPO's surrogate with the bounds 0.2 and 0.28 (clip-higher), mean over all tokens (equation 12)

Its dynamic sampling is `rollout.replace_constant_groups`: groups whose rewards are all equal are replaced.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, RewardSettings
from hone.train.algorithms.grpo import z_scores


class DapoSettings(RewardSettings):
    """DAPO."""

    name: Literal["dapo"] = "dapo"

    overlong_tokens: int = Field(default=20480, gt=0)
    """Sampled tokens of a rollout from which the penalty for its length is 1."""

    overlong_cache: int = Field(default=4096, gt=0)
    """Tokens below `overlong_tokens` over which the penalty rises from 0 to 1."""

    @property
    def algorithm(self) -> Algorithm:
        return DAPO

    @model_validator(mode="after")
    def _cache_is_a_part(self) -> Self:
        if self.overlong_cache > self.overlong_tokens:
            raise ValueError(
                f"overlong_cache is {self.overlong_cache}, more than overlong_tokens "
                f"({self.overlong_tokens}): make it smaller"
            )
        return self


def advantages(groups: Sequence[Group], settings: DapoSettings) -> list[GroupAdvantages]:
    return [
        GroupAdvantages(
            rollouts=z_scores(
                group.rewards
                + overlong_penalty(group.tokens, settings.overlong_tokens, settings.overlong_cache)
            )
        )
        for group in groups
    ]


def overlong_penalty(tokens: npt.NDArray[np.float64], longest: int, cache: int) -> npt.NDArray[np.float64]:
    """Return the penalty of each length in tokens, [n], in [-1, 0]. Example: 95 of 100 and 10 -> -0.5."""
    return np.clip((longest - cache - tokens) / cache, -1.0, 0.0)


DAPO = Algorithm(advantages=advantages, clip_high=0.28)
