"""PPO with a critic (arXiv:1707.06347) and generalised advantage estimation (GAE, arXiv:1506.02438).

    A of a token = sum over later tokens of (gamma lambda)^l (r + gamma V(next) - V)    (GAE, equation 16)
    loss: PPO's clipped surrogate + value_coef * clipped squared error of V; mean over tokens

The steps are tokens: V is the critic's value before a sampled token, and the next step is the next token that
the policy sampled in the rollout, past observations; branches follow each other in their order. The reward of
the rollout is that of its last token. Advantages are normalised over the tokens of the batch. The critic is a
linear head on the last hidden state of the policy's own model, which the loss of the values trains, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from pydantic import Field

from hone.train.algorithms.contract import (
    Algorithm,
    Critic,
    Group,
    GroupAdvantages,
    RewardSettings,
    of_each_group,
)


class PpoSettings(RewardSettings):
    """PPO."""

    name: Literal["ppo"] = "ppo"

    gamma: float = Field(default=1.0, gt=0, le=1)
    """Discount of the reward per sampled token."""

    gae_lambda: float = Field(default=0.95, ge=0, le=1)
    """Lambda of GAE: 1 uses the whole reward of the rollout, 0 the value of the next token alone."""

    value_coef: float = Field(default=0.1, gt=0)
    """Weight of the loss of the values."""

    value_clip: float = Field(default=0.2, gt=0)
    """Change of a value since the start of the batch above which it has no gradient towards its target."""

    @property
    def algorithm(self) -> Algorithm:
        return replace(
            PPO,
            critic=Critic(
                gamma=self.gamma,
                gae_lambda=self.gae_lambda,
                value_coef=self.value_coef,
                value_clip=self.value_clip,
            ),
        )


def advantages(groups: Sequence[Group], settings: PpoSettings) -> list[GroupAdvantages]:
    """Return the rewards, from which the trainer estimates the advantages with its critic."""
    return of_each_group(groups, lambda rewards: rewards)


PPO = Algorithm(advantages=advantages)
