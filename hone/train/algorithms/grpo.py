"""GRPO: the group is its own baseline (arXiv:2402.03300, section 4.1 and equation 3).

A = (reward - mean of the group) / standard deviation of the group
loss: PPO's clipped surrogate; the paper averages over tokens within a rollout, and so does
`train.loss.normalisation = "trajectory"`. The default here is the mean over all tokens.
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

SAME_REWARD = 1e-8  # rewards closer than this are equal
LEAST_DEVIATION = 1e-3  # divisor of rewards that differ by less, whose differences would become large


class GrpoSettings(RewardSettings):
    """GRPO."""

    name: Literal["grpo"] = "grpo"
    """The algorithm. `grpo`: reward minus the mean of the group. `dr_grpo`: without its two biases. `rloo`:
    reward minus the mean of the others. `reinforce_pp`: normalised over the batch. `dapo`: asymmetric clip
    and a penalty for overlong rollouts. `gspo`: one ratio per rollout. `cispo`: truncated ratios, no token
    without gradient. `step_wise`: the reward of each turn plus the outcome's, normalised over the same turn
    of the whole group. `opo`: a baseline weighted by length. `ppo`: a critic. `custom`: yours."""

    normalise_std: bool = True
    """Divide the advantages by the standard deviation of the group's rewards."""

    @property
    def algorithm(self) -> Algorithm:
        return GRPO


def advantages(groups: Sequence[Group], settings: GrpoSettings) -> list[GroupAdvantages]:
    return of_each_group(groups, z_scores if settings.normalise_std else centred)


def centred(rewards: Rewards) -> Rewards:
    """Return reward - mean, which sum to 0; zeros where all `rewards` [n] are equal.

    Example: [1, -1, -1, -1] -> [1.5, -0.5, -0.5, -0.5].
    """
    if float(np.ptp(rewards)) <= SAME_REWARD:
        return np.zeros_like(rewards)
    return rewards - rewards.mean()


def z_scores(rewards: Rewards) -> Rewards:
    """Return reward - mean, divided by the sample standard deviation, or by LEAST_DEVIATION if that is more.

    Without the least deviation, rewards of 0.5, 0.5, 0.5 and 0.50001 would give an advantage of 1.5.
    """
    values = centred(rewards)
    if not values.any():
        return values
    return values / max(float(np.std(rewards, ddof=1)), LEAST_DEVIATION)


GRPO = Algorithm(advantages=advantages)
