"""Step-wise credit: each turn is compared with the same turn of the rest of its group.

The process-reward estimator of OpenClaw's SWE-RL: a turn's reward plus the outcome's, as a z-score over the
turns of one index in one group, for every token of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from hone.train.algorithms.rewards import SAME_REWARD, Rewards


def step_wise(
    outcomes: Rewards, turns: Sequence[Sequence[int]], rewards: Sequence[Mapping[int, float]]
) -> tuple[Rewards, list[dict[int, float]]]:
    """The advantages of rollouts as wholes, and of each of their turns, by turn index.

    Args:
        outcomes: [n] the outcome rewards of one group.
        turns: [n] the indices of each rollout's turns.
        rewards: [n] what single turns earned, by index; a turn without an entry earned 0.

    A turn that no other rollout of the group got to has nothing to be compared with: its advantage is 0, as
    is that of turns that are all worth the same. The advantages of each turn index sum to 0. The whole
    rollout's advantage, for tokens of no turn, is the z-score of its outcome.

    Example: outcomes [1, -1], one turn each, rewards [{0: 1.0}, {0: -1.0}]: worth 2 and -2, advantages
    0.707 and -0.707.
    """
    advantages: list[dict[int, float]] = [{} for _ in turns]
    for index in sorted({index for own in turns for index in own}):
        members = [i for i, own in enumerate(turns) if index in own]
        worth = np.array([outcomes[i] + rewards[i].get(index, 0.0) for i in members], np.float64)
        for i, advantage in zip(members, z_score(worth).tolist(), strict=True):
            advantages[i][index] = advantage
    return z_score(outcomes), advantages


def z_score(values: Rewards) -> Rewards:
    """(value - mean) / sample standard deviation; 0 where there is no deviation."""
    if len(values) < 2 or float(np.ptp(values)) <= SAME_REWARD:
        return np.zeros_like(values)
    return (values - values.mean()) / np.std(values, ddof=1)
