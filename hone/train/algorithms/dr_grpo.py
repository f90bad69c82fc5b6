"""Dr. GRPO: GRPO without its two biases (arXiv:2503.20783, section 3).

A = reward - mean of the group, not divided by the standard deviation, which gives tasks that are almost
always or almost never solved more weight than the rest
loss: PPO's clipped surrogate, summed over a rollout and divided by a constant, because a mean over its
tokens favours long wrong rollouts. The constant is the longest reply of the paper's experiments.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from hone.train.algorithms.contract import Algorithm, Group, GroupAdvantages, RewardSettings, of_each_group
from hone.train.algorithms.grpo import centred


class DrGrpoSettings(RewardSettings):
    """Dr. GRPO."""

    name: Literal["dr_grpo"] = "dr_grpo"

    @property
    def algorithm(self) -> Algorithm:
        return DR_GRPO


def advantages(groups: Sequence[Group], settings: DrGrpoSettings) -> list[GroupAdvantages]:
    return of_each_group(groups, centred)


DR_GRPO = Algorithm(advantages=advantages, normalisation="constant", constant_tokens=3000)
