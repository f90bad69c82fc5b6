"""Decide the reward and the mask of a rollout from its outcome and verdict.

A rollout that a limit ended keeps that limit as its outcome, so that limits can be counted. Its patch is
graded too. If the patch resolves the task, the rollout gets the reward of a submitted fix, is never masked,
and counts as resolved in every resolve rate.
"""

from __future__ import annotations

from collections.abc import Mapping

from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.settings import RolloutSettings
from hone.types import Trajectory, Verdict


def is_infrastructure_fault(outcome: Outcome) -> bool:
    """Return whether the outcome says nothing about the policy, so that the rollout is retried."""
    return OUTCOME_RULES[outcome].fault is Fault.INFRASTRUCTURE


def solved(outcome: Outcome, verdict: Verdict | None) -> bool:
    """Return whether the task counts as resolved: a graded patch passed every hidden check."""
    counts = outcome is Outcome.RESOLVED or OUTCOME_RULES[outcome].graded
    return counts and verdict is not None and verdict.resolved


def reward_of(outcome: Outcome, verdict: Verdict | None, rewards: Mapping[Outcome, float]) -> float | None:
    """Return the reward, or None for an infrastructure fault. `rewards` overrides `OUTCOME_RULES`."""
    worth = Outcome.RESOLVED if solved(outcome, verdict) else outcome
    return rewards.get(worth, OUTCOME_RULES[worth].reward)


def is_masked(trajectory: Trajectory, settings: RolloutSettings) -> bool:
    """Return whether the rollout counts in the baseline but is not trained."""
    return trajectory.outcome in settings.masked and not solved(trajectory.outcome, trajectory.verdict)
