"""GRPO: the group is its own baseline (arXiv:2402.03300, section 4.1).

Dr. GRPO (arXiv:2503.20783, section 3) drops the division by the standard deviation, which gives tasks that
are almost always or almost never solved more weight than the rest.
"""

from __future__ import annotations

import numpy as np

from hone.train.algorithms.rewards import Rewards


def grpo(rewards: Rewards, *, normalise_std: bool) -> Rewards:
    """Return reward - mean, divided by the sample standard deviation where `normalise_std`.

    `rewards` [n >= 2] must not all be equal. The advantages sum to 0.
    Example: [1, -1, -1, -1] -> [1.5, -0.5, -0.5, -0.5], with the deviation of 1.0 the same.
    """
    centred = rewards - rewards.mean()
    return centred / np.std(rewards, ddof=1) if normalise_std else centred
