"""What an algorithm is: advantages from rewards, a surrogate of the ratio, clip bounds and a normalisation.

    groups of rollouts -> Algorithm.advantages -> one advantage per rollout (or turn)
    advantages, ratio  -> Algorithm.surrogate  -> one loss per token
    losses             -> normalisation        -> the loss of a mini-batch

This package imports neither torch nor the settings of training, so that settings can import it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import field_validator

from hone.settings import Settings
from hone.train.algorithms.surrogates import CLIPPED, Surrogate
from hone.types import Trajectory

Rewards = npt.NDArray[np.float64]  # [n] one per member of a group: rewards in, advantages out
Normalisation = Literal["token", "trajectory", "group", "constant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one group that count in the baseline."""

    rewards: Rewards  # [n], finite
    rollouts: tuple[Trajectory, ...]  # [n]

    @property
    def tokens(self) -> npt.NDArray[np.float64]:
        """The number of tokens that the policy sampled, [n]."""
        return np.array([rollout.tree.sampled_tokens for rollout in self.rollouts], np.float64)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupAdvantages:
    """The advantages of one group."""

    rollouts: Rewards  # [n]
    turns: tuple[
        Mapping[int, float], ...
    ] = ()  # [n] turn index -> advantage; (): that of the rollout for all


@dataclass(frozen=True, slots=True, kw_only=True)
class Critic:
    """A value head and how advantages follow from it; see `hone.train.algorithms.ppo`."""

    gamma: float
    gae_lambda: float
    value_coef: float
    value_clip: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Algorithm:
    """One algorithm with the defaults of its paper.

    `advantages` gets all groups of a batch and the algorithm's settings, and returns one entry per group.
    """

    advantages: Callable[[Sequence[Group], Any], Sequence[GroupAdvantages]]
    surrogate: Surrogate = CLIPPED
    clip_low: float | None = 0.2  # the ratio is clipped below 1 - clip_low; None: there is no lower bound
    clip_high: float | None = 0.2  # and above 1 + clip_high; None: there is no upper bound
    sequence_ratio: bool = False  # one ratio per rollout, the geometric mean of those of its tokens
    normalisation: Normalisation = "token"  # see `hone.train.loss.token_scales`
    constant_tokens: int | None = None  # of the normalisation `constant`
    critic: Critic | None = None  # `advantages` then returns rewards, and the trainer estimates advantages


class AlgorithmSettings(Settings):
    """What the settings of every algorithm have."""

    @property
    def uses_turns(self) -> bool:
        """Whether training uses turn rewards."""
        return True

    @property
    def algorithm(self) -> Algorithm:
        """The algorithm that these settings choose. Raises TrainError for one that cannot be loaded."""
        raise NotImplementedError

    @property
    def named(self) -> str:
        """The algorithm in a few words, for display."""
        return str(getattr(self, "name", ""))


ENTRY_POINT = re.compile(r"[A-Za-z_][\w.]*:[A-Za-z_]\w*")  # MODULE:ATTRIBUTE


class RewardSettings(AlgorithmSettings):
    """The settings of an algorithm with one reward per rollout."""

    reward: str = "outcome"
    """Reward of a rollout: `outcome`, that of the outcome; `final`, the final score, which adds the turn
    rewards (see `judge` and `progress`); or MODULE:FUNCTION of yours, from a rollout to a number."""

    @field_validator("reward")
    @classmethod
    def _reward_is_known(cls, reward: str) -> str:
        if reward not in ("outcome", "final") and not ENTRY_POINT.fullmatch(reward):
            raise ValueError(
                f"reward is {reward!r}: set 'outcome', 'final' or the MODULE:FUNCTION of a reward of yours"
            )
        return reward

    @property
    def uses_turns(self) -> bool:
        return self.reward == "final"

    @property
    def named(self) -> str:
        return f"{super().named} on the {self.reward} reward"


def of_each_group(groups: Sequence[Group], estimate: Callable[[Rewards], Rewards]) -> list[GroupAdvantages]:
    """Return the advantages of groups that do not depend on each other, from their rewards alone."""
    return [GroupAdvantages(rollouts=estimate(group.rewards)) for group in groups]
