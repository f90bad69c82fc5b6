"""Settings of the rollout room."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Annotated

from pydantic import Field, field_validator, model_validator

from hone.outcomes import OUTCOME_RULES, Fault, Outcome, Trained
from hone.settings import Mark, Settings
from hone.utils.retry import backoff_delays


class RolloutSettings(Settings):
    """How rollouts are collected."""

    group_size: int = Field(default=8, ge=1)
    """Rollouts of one task that share a baseline."""

    concurrent_episodes: Annotated[int, Mark.SAME_RESULTS] = Field(default=16, ge=1)
    """Rollouts that run at the same time; each holds one sandbox, the agent's or the grader's, unless it is
    parked (`park_after_s`)."""

    park_after_s: Annotated[float | None, Mark.SAME_RESULTS] = Field(default=None, gt=0)
    """Seconds of waiting for a reply after which a rollout gives its sandbox back, until its next command.
    Its files are kept, and its place is free for another rollout. A sandbox in which a process is alive
    stays. Default: never."""

    sandboxes: Annotated[int | None, Mark.SAME_RESULTS] = Field(default=None, ge=1)
    """Sandboxes that rollouts hold at the same time, with `park_after_s`; rollouts above that wait for one.
    Default: `concurrent_episodes`."""

    max_staleness: int = Field(default=0, ge=0, le=64)
    """Training steps by which the weights that began a rollout may be older than those it trains. 0: a step
    waits for all its rollouts, and the engine for the step. Above: rollouts go on while the trainer works,
    and up to `max_staleness + 1` batches of groups are under way."""

    partial: bool = True
    """Whether a weight update cuts the replies under way, which then go on under the new weights, each token
    with its version, instead of waiting for them to end; with `max_staleness` above 0."""

    time_limit_s: float = Field(default=600.0, gt=0)
    """Seconds that an agent may work, counted from the lease of its sandbox. Waiting for a sandbox does not
    count; a reply that has begun is completed."""

    reply_timeout_s: float = Field(default=300.0, gt=0)
    """Seconds the engine may take for one reply before it counts as an infrastructure fault."""

    attempts: Annotated[int, Mark.SAME_RESULTS] = Field(default=3, ge=1)
    """Attempts at one rollout before its infrastructure faults set its task aside, for an epoch at first; the
    group is filled by another task."""

    fault_budget: Annotated[float, Mark.SAME_RESULTS] = Field(default=0.5, ge=0, le=1)
    """Share of the last 16 groups whose tasks may be set aside; more stop the run. 0: the first one does."""

    curriculum_visits: int | None = Field(default=None, ge=1)
    """Visits in a row without a signal (all rewards of the group equal) after which three of four further
    visits of the task go to another one; default: every task is visited as often."""

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

    @property
    def sandboxes_at_once(self) -> int:
        """Return how many sandboxes rollouts hold at the same time, at most."""
        return min(self.concurrent_episodes, self.sandboxes or self.concurrent_episodes)

    @model_validator(mode="after")
    def _parking_has_an_effect(self) -> RolloutSettings:
        if self.park_after_s is None:
            if self.sandboxes is not None:
                raise ValueError(
                    "sandboxes has no effect without park_after_s, as each rollout then holds one: set "
                    "park_after_s, or concurrent_episodes instead"
                )
        elif self.park_after_s >= self.reply_timeout_s:
            raise ValueError(
                f"park_after_s is {self.park_after_s:g}, but no reply takes longer than reply_timeout_s "
                f"({self.reply_timeout_s:g}): set it below that"
            )
        return self

    @model_validator(mode="after")
    def _partial_needs_staleness(self) -> RolloutSettings:
        if self.max_staleness == 0 and "partial" in self.model_fields_set:
            raise ValueError(
                "partial has no effect with max_staleness = 0, as no reply is under way during an update: "
                "remove it, or raise max_staleness"
            )
        return self

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
