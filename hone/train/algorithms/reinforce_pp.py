"""REINFORCE++: advantages are normalised over the whole batch (arXiv:2501.03262, section 3).

A = (reward - mean of the batch) / standard deviation of the batch, both over the sampled tokens
with `group_baseline` (the paper's variant "w/ Baseline"): the mean of the group is subtracted first
loss: PPO's clipped surrogate, mean over tokens. The paper's KL penalty in the reward is left out; the one
of its variant is `train.loss.kl_coef` with `kl_estimator = "k2"`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, RewardSettings
from hone.train.algorithms.grpo import LEAST_DEVIATION, SAME_REWARD, centred


class ReinforcePPSettings(RewardSettings):
    """REINFORCE++."""

    name: Literal["reinforce_pp"] = "reinforce_pp"

    group_baseline: bool = False
    """Subtract the mean of the group before the normalisation over the batch."""

    @property
    def algorithm(self) -> Algorithm:
        return REINFORCE_PP


def advantages(groups: Sequence[Group], settings: ReinforcePPSettings) -> list[GroupAdvantages]:
    own = [centred(group.rewards) if settings.group_baseline else group.rewards for group in groups]
    values = np.concatenate([*own, np.zeros(0)])
    if not len(values) or float(np.ptp(values)) <= SAME_REWARD:
        return [GroupAdvantages(rollouts=np.zeros_like(each)) for each in own]
    tokens = np.concatenate([group.tokens for group in groups])
    weights = tokens if tokens.any() else np.ones_like(tokens)
    mean = np.average(values, weights=weights)
    deviation = max(float(np.sqrt(np.average((values - mean) ** 2, weights=weights))), LEAST_DEVIATION)
    return [GroupAdvantages(rollouts=(each - mean) / deviation) for each in own]


REINFORCE_PP = Algorithm(advantages=advantages)
