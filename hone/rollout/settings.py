"""Settings of the rollout room."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, field_validator

from hone.outcomes import OUTCOME_RULES, Fault, Outcome, Trained
from hone.settings import Mark, Settings
from hone.utils.retry import backoff_delays


class RolloutSettings(Settings):
    """How rollouts are collected."""

    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that share a baseline."""

    concurrent_episodes: Annotated[int, Mark.SAME_RESULTS] = Field(default=16, ge=1)
    """Rollouts that run at the same time; each holds one sandbox, the agent's or the grader's."""

    time_limit_s: float = Field(default=600.0, gt=0)
    """Seconds that an agent may work, counted from the lease of its sandbox. Waiting for a sandbox does not
    count; a reply that has begun is completed."""

    reply_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds the engine may take for one reply before it counts as an infrastructure fault."""

    attempts: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=1)
    """Attempts at one rollout of a group before its infrastructure faults stop the step."""

    retry_delay_s: Annotated[float, Mark.SAME_RESULTS] = Field(default=1.0, ge=0)
    """Seconds before a rollout is retried after an infrastructure fault; doubles with each further fault."""

    replace_constant_groups: int = Field(default=0, ge=0)
    """How often a group whose rewards are all equal is replaced by a group of another task; 0: never."""

    rewards: dict[Outcome, float] = Field(default_factory=dict[Outcome, float])
    """Reward per outcome; overrides the table in `hone.outcomes`."""

    masked: frozenset[Outcome] = frozenset()
    """Limit outcomes whose unresolved rollouts count in the baseline but are not trained."""

    def retry_delays(self) -> Iterator[float]:
        """Yield the seconds to wait after each infrastructure fault of one rollout."""
        return backoff_delays(self.retry_delay_s, max_s=math.inf)

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
