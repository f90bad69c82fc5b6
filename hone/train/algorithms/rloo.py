"""RLOO: the others of the group are the baseline (Ahmadian et al. 2024, arXiv:2402.14740, section 3).

A = reward - mean of the other rewards, so the baseline does not depend on the reward it is subtracted from
loss: PPO's clipped surrogate, which at ratio 1 has the gradient of the paper's REINFORCE; mean over tokens
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hone.train.algorithms.contract import (
    Algorithm,
    Group,
    GroupAdvantages,
    Rewards,
    RewardSettings,
    of_each_group,
)
from hone.train.algorithms.grpo import SAME_REWARD


class RlooSettings(RewardSettings):
    """RLOO."""

    name: Literal["rloo"] = "rloo"

    @property
    def algorithm(self) -> Algorithm:
        return RLOO


def advantages(groups: Sequence[Group], settings: RlooSettings) -> list[GroupAdvantages]:
    return of_each_group(groups, without_own)


def without_own(rewards: Rewards) -> Rewards:
    """Return reward - mean of the other rewards; zeros where all `rewards` [n] are equal.

    Example: [1, -1, -1] -> [2.0, -1.0, -1.0].
    """
    if float(np.ptp(rewards)) <= SAME_REWARD:
        return np.zeros_like(rewards)
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


RLOO = Algorithm(advantages=advantages)
