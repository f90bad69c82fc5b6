"""From outcome and verdict to the reward and the mask: the one place where both are decided.

A rollout that a limit ended keeps the name of that limit, so that limits can be counted. Its patch is
graded all the same, and when the verdict says resolved it is worth what a submitted fix is worth, is never
masked, and counts as resolved in every resolve rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.settings import RolloutSettings
from hone.types import Trajectory, Verdict


def solved(outcome: Outcome, verdict: Verdict | None) -> bool:
    """Whether the task counts as resolved: every hidden check passed on a patch that was allowed to count."""
    counts = outcome is Outcome.RESOLVED or OUTCOME_RULES[outcome].graded
    return counts and verdict is not None and verdict.resolved


def reward_of(outcome: Outcome, verdict: Verdict | None, rewards: Mapping[Outcome, float]) -> float | None:
    """The reward; None exactly when the outcome is infrastructure's. `rewards` overrides the table."""
    worth = Outcome.RESOLVED if solved(outcome, verdict) else outcome
    return rewards.get(worth, OUTCOME_RULES[worth].reward)


def is_masked(trajectory: Trajectory, settings: RolloutSettings) -> bool:
    """Whether the rollout counts in the baseline but is not trained."""
    return trajectory.outcome in settings.masked and not solved(trajectory.outcome, trajectory.verdict)
