"""Settings of the rollout room."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, field_validator

from hone.outcomes import OUTCOME_RULES, Fault, Outcome, Trained
from hone.settings import Mark, Settings


class RolloutSettings(Settings):
    """How rollouts are collected."""

    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that share a baseline."""

    concurrent_episodes: Annotated[int, Mark.SAME_RESULTS] = Field(default=16, ge=1)
    """Rollouts under way at the same time; each holds one sandbox, the agent's or the grader's."""

    time_limit_s: float = Field(default=600.0, gt=0)
    """Seconds an agent may work, from the moment its sandbox is leased; waiting for one does not count, and a
    reply that has begun is waited for."""

    reply_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds the engine may take for one reply before it counts as an infrastructure fault."""

    attempts: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=1)
    """How often a place in a group is filled before its infrastructure faults stop the step."""

    retry_delay_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=1.0, ge=0)
    """Seconds before a place is refilled after a fault; doubles with each further fault of that place."""

    replace_constant_groups: int = Field(default=0, ge=0)
    """How often a group whose rewards are all equal is replaced by a group of another task; 0: never."""

    rewards: dict[Outcome, float] = Field(default_factory=dict[Outcome, float])
    """Reward per outcome, where it shall differ from the table in `hone.outcomes`."""

    masked: frozenset[Outcome] = frozenset()
    """Limit outcomes whose unresolved rollouts count in the baseline but are not trained."""

    @field_validator("rewards")
    @classmethod
    def _infrastructure_has_no_reward(cls, rewards: dict[Outcome, float]) -> dict[Outcome, float]:
        refused = [o.value for o in rewards if OUTCOME_RULES[o].fault is Fault.INFRASTRUCTURE]
        if refused:
            raise ValueError(f"{', '.join(refused)}: an infrastructure fault has no reward; remove it")
        return rewards

    @field_validator("masked")
    @classmethod
    def _only_limits_can_be_masked(cls, masked: frozenset[Outcome]) -> frozenset[Outcome]:
        maskable = [o.value for o, rule in OUTCOME_RULES.items() if rule.trained is Trained.BY_CONFIG]
        refused = sorted(o.value for o in masked if o.value not in maskable)
        if refused:
            raise ValueError(f"{', '.join(refused)}: only {', '.join(maskable)} can be masked")
        return masked
