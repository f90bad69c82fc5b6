"""Step-wise: each turn is compared with the same turn of the rest of its group.

A = z-score of (reward of the turn + reward of the outcome) over the turns of one index in one group, for
every token of the turn; it is the process-reward estimator of OpenClaw's SWE-RL
loss: PPO's clipped surrogate, mean over tokens
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np

from hone.train.algorithms.contract import Algorithm, AlgorithmSettings, Group, GroupAdvantages, Rewards
from hone.train.algorithms.grpo import z_scores
from hone.train.errors import TrainError
from hone.types import Trajectory


class StepWiseSettings(AlgorithmSettings):
    """The step-wise algorithm."""

    name: Literal["step_wise"] = "step_wise"

    @property
    def algorithm(self) -> Algorithm:
        return STEP_WISE


def advantages(groups: Sequence[Group], settings: StepWiseSettings) -> list[GroupAdvantages]:
    return [_of_group(group) for group in groups]


def _of_group(group: Group) -> GroupAdvantages:
    turns = [[turn.index for turn in rollout.turns] for rollout in group.rollouts]
    own, of_turns = by_turn(group.rewards, turns, [_turn_rewards(rollout) for rollout in group.rollouts])
    return GroupAdvantages(rollouts=own, turns=tuple(of_turns))


def by_turn(
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
        for i, advantage in zip(members, z_scores(returns).tolist(), strict=True):
            advantages[i][index] = advantage
    return z_scores(outcomes), advantages


def _turn_rewards(rollout: Trajectory) -> Mapping[int, float]:
    known = {turn.index for turn in rollout.turns}
    wrong = {i: r for i, r in rollout.turn_rewards.items() if i not in known or not np.isfinite(r)}
    if wrong:
        raise TrainError(
            f"rollout {rollout.rollout_id} has turn rewards {wrong}: each needs a turn of that index and a "
            "finite number"
        )
    return rollout.turn_rewards


STEP_WISE = Algorithm(advantages=advantages)
