"""CISPO: the truncated ratio is a weight, and every token keeps its gradient (arXiv:2506.13585, section 3.1).

    A = (reward - mean of the group) / standard deviation of the group
    loss = -stop_gradient(min(ratio, 1 + clip_high)) * A * log-probability, mean over all tokens (equation 4)

The paper has no lower bound and does not print its upper one; the default ratio of at most 5 is the one of
ScaleRL (arXiv:2510.13786).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, RewardSettings, of_each_group
from hone.train.algorithms.grpo import z_scores
from hone.train.algorithms.surrogates import TRUNCATED


class CispoSettings(RewardSettings):
    """CISPO."""

    name: Literal["cispo"] = "cispo"

    @property
    def algorithm(self) -> Algorithm:
        return CISPO


def advantages(groups: Sequence[Group], settings: CispoSettings) -> list[GroupAdvantages]:
    return of_each_group(groups, z_scores)


CISPO = Algorithm(advantages=advantages, surrogate=TRUNCATED, clip_low=None, clip_high=4.0)
