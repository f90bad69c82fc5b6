"""Step-wise advantages: each turn is compared with the same turn of the rest of its group.

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
    """Return the advantages [n] of the rollouts, and of each of their turns by index.

    Args:
        outcomes: [n] the outcome rewards of one group.
        turns: [n] the indices of each rollout's turns.
        rewards: [n] turn rewards, by index; a turn without an entry has reward 0.

    The advantage of a turn is 0 when no other rollout of the group reached that turn, or when all rewards of
    the turn are equal. The advantages of each turn index sum to 0. The advantage of a rollout, for tokens
    outside turns, is the z-score of its outcome.

    Example: outcomes [1, -1], one turn each, rewards [{0: 1.0}, {0: -1.0}]: returns 2 and -2, advantages
    0.707 and -0.707.
    """
    advantages: list[dict[int, float]] = [{} for _ in turns]
    for index in sorted({index for own in turns for index in own}):
        members = [i for i, own in enumerate(turns) if index in own]
        returns = np.array([outcomes[i] + rewards[i].get(index, 0.0) for i in members], np.float64)
        for i, advantage in zip(members, z_score(returns).tolist(), strict=True):
            advantages[i][index] = advantage
    return z_score(outcomes), advantages


def z_score(values: Rewards) -> Rewards:
    """Return (value - mean) / sample standard deviation, or zeros where all values are equal."""
    if len(values) < 2 or float(np.ptp(values)) <= SAME_REWARD:
        return np.zeros_like(values)
    return (values - values.mean()) / np.std(values, ddof=1)
