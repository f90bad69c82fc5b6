"""Advantages from the rewards of one group: GRPO, RLOO and the step-wise estimator.

GRPO: the group is its own baseline (arXiv:2402.03300, section 4.1). Dr. GRPO (arXiv:2503.20783, section 3)
drops the division by the standard deviation, which gives tasks that are almost always or almost never solved
more weight than the rest.

RLOO: the others of the group are the baseline, so it does not depend on the reward it is subtracted from
(Ahmadian et al. 2024, arXiv:2402.14740, section 3).

Step-wise: each turn is compared with the same turn of the rest of its group. It is the process-reward
estimator of OpenClaw's SWE-RL: a turn's reward plus the outcome's, as a z-score over the turns of one index
in one group, for every token of the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

Rewards = npt.NDArray[np.float64]  # [n] one per member of a group: rewards in, advantages out

SAME_REWARD = 1e-8  # rewards closer than this are equal


def grpo(rewards: Rewards, *, normalise_std: bool) -> Rewards:
    """Return reward - mean, divided by the sample standard deviation where `normalise_std`.

    `rewards` is [n]; the advantages sum to 0, and are 0 where all rewards are equal.
    Example: [1, -1, -1, -1] -> [1.5, -0.5, -0.5, -0.5], with the deviation of 1.0 the same.
    """
    if float(np.ptp(rewards)) <= SAME_REWARD:
        return np.zeros_like(rewards)
    centred = rewards - rewards.mean()
    return centred / np.std(rewards, ddof=1) if normalise_std else centred


def rloo(rewards: Rewards) -> Rewards:
    """Return reward - mean of the other rewards; zeros where all `rewards` [n] are equal.

    Example: [1, -1, -1] -> [2.0, -1.0, -1.0].
    """
    if float(np.ptp(rewards)) <= SAME_REWARD:
        return np.zeros_like(rewards)
    others = (rewards.sum() - rewards) / (len(rewards) - 1)
    return rewards - others


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
        for i, advantage in zip(members, grpo(returns, normalise_std=True).tolist(), strict=True):
            advantages[i][index] = advantage
    return grpo(outcomes, normalise_std=True), advantages
