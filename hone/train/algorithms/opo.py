"""OPO: the baseline of the least variance of the gradient (arXiv:2505.23585, section 3.2).

A = reward - sum(tokens * reward) / sum(tokens), over the group; tokens: sampled tokens of a rollout
loss: the paper trains on-policy, with one optimiser step per batch, without clip and KL; PPO's clipped
surrogate, which then has the same gradient, bounds further optimiser steps. Mean over tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, Rewards, RewardSettings
from hone.train.algorithms.grpo import SAME_REWARD


class OpoSettings(RewardSettings):
    """OPO."""

    name: Literal["opo"] = "opo"

    @property
    def algorithm(self) -> Algorithm:
        return OPO


def advantages(groups: Sequence[Group], settings: OpoSettings) -> list[GroupAdvantages]:
    return [GroupAdvantages(rollouts=by_length(group.rewards, group.tokens)) for group in groups]


def by_length(rewards: Rewards, tokens: Rewards) -> Rewards:
    """Return reward - the mean of the rewards [n] weighted by `tokens` [n]; zeros where all are equal.

    Example: rewards [1, -1] of 30 and 10 tokens -> [0.5, -1.5].
    """
    if float(np.ptp(rewards)) <= SAME_REWARD or not tokens.any():
        return np.zeros_like(rewards)
    return rewards - np.average(rewards, weights=tokens)


OPO = Algorithm(advantages=advantages)
