"""GSPO: one ratio per rollout (arXiv:2507.18071, equations 5 to 7).

    A = (reward - mean of the group) / standard deviation of the group
    ratio = geometric mean of the ratios of all trained tokens of the rollout
    loss: PPO's clipped surrogate of that ratio, bounds 3e-4 and 4e-4 (section 5.1), mean over rollouts

Each token gets the same ratio and the gradient of its own log-probability (GSPO-token, equation 13 with equal
advantages), which sums up to the gradient of GSPO.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, RewardSettings, of_each_group
from hone.train.algorithms.grpo import z_scores


class GspoSettings(RewardSettings):
    """GSPO."""

    name: Literal["gspo"] = "gspo"

    @property
    def algorithm(self) -> Algorithm:
        return GSPO


def advantages(groups: Sequence[Group], settings: GspoSettings) -> list[GroupAdvantages]:
    return of_each_group(groups, z_scores)


GSPO = Algorithm(
    advantages=advantages, clip_low=3e-4, clip_high=4e-4, sequence_ratio=True, normalisation="trajectory"
)
