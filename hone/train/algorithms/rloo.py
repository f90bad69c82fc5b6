"""RLOO: the others of the group are the baseline, so it does not depend on the reward it is subtracted from.

Ahmadian et al. 2024, arXiv:2402.14740, section 3.
"""

from __future__ import annotations

from hone.train.algorithms.rewards import Rewards


def rloo(rewards: Rewards) -> Rewards:
    """Return reward - mean of the other rewards; `rewards` is [n >= 2].

    Example: [1, -1, -1] -> [2.0, -1.0, -1.0].
    """
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others
