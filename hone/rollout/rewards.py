"""Rewards and masks of rollouts, from their outcomes, verdicts and the scores of their turns.

A rollout that a limit ended keeps that limit as its outcome, so that limits can be counted. Its patch is
graded too. If the patch resolves the task, the rollout gets the reward of a submitted fix, is never masked,
and counts as resolved in every resolve rate.

    trajectory.scores.judgements, .progress  ->  trajectory.turn_rewards, trajectory.scores.final

Scores are stored without coefficients, so that a stored rollout can be weighed again (`hone replay`).
Invariant: everything is joined by the turn's index, never by position; an unscored turn has no entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from hone.grading.progress import shaping
from hone.grading.settings import JudgeSettings, ProgressSettings
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.errors import RolloutError
from hone.rollout.settings import RolloutSettings
from hone.types import FinalScore, JudgementStatus, ProgressScores, ProgressStatus, Trajectory, Verdict


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


def weigh(trajectory: Trajectory, judge: JudgeSettings, progress: ProgressSettings) -> Trajectory:
    """Return the trajectory with the turn rewards and the final score under these settings.

    turn reward = judge.coefficient * score + progress.coefficient * F    (see `hone.grading.progress`)
    final score = outcome reward + judge.coefficient * mean(scores) + progress.coefficient * sum(F)

    A rollout without an outcome reward gets no turn rewards either. Raises RolloutError when the settings
    reward scores that the rollout lacks.
    """
    if trajectory.reward is None or not (judge.rewards or progress.rewards):
        return dataclasses.replace(trajectory, turn_rewards={})
    scores = _judged(trajectory) if judge.rewards else {}
    shaped = _measured(trajectory, progress) if progress.rewards else {}
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    total = sum(shaped.values())
    turn_rewards = {
        index: judge.coefficient * scores.get(index, 0.0) + progress.coefficient * shaped.get(index, 0.0)
        for index in sorted({*scores, *shaped})
    }
    final = FinalScore(
        score=trajectory.reward + judge.coefficient * mean + progress.coefficient * total,
        acc=float(solved(trajectory.outcome, trajectory.verdict)),
        outcome_reward=trajectory.reward,
        prm_step_mean=mean,
        prm_step_coef=judge.coefficient,
        progress_sum=total,
        progress_coef=progress.coefficient,
    )
    weighed = dataclasses.replace(trajectory.scores, final=final)
    return dataclasses.replace(trajectory, turn_rewards=turn_rewards, scores=weighed)


def final_score(trajectory: Trajectory) -> float:
    """Return outcome reward plus turn rewards, see `weigh`. Raises RolloutError without scores."""
    if trajectory.scores.final is None:
        raise RolloutError(
            f"rollout {trajectory.rollout_id} has no final score, since none of its turns was scored: set "
            "train.algorithm.reward = 'outcome', or collect rollouts with judge.enabled or progress.enabled"
        )
    return trajectory.scores.final.score


def summary(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Return metrics of a batch's judgements and progress; names without a value are absent."""
    rewards = [reward for t in trajectories for reward in t.turn_rewards.values()]
    metrics = {"turn_reward": sum(rewards) / len(rewards)} if rewards else {}
    return metrics | _judge_metrics(trajectories) | _progress_metrics(trajectories)


def _judge_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    judgements = [j for t in trajectories for j in t.scores.judgements or ()]
    if not judgements:
        return {}
    votes = [vote for judgement in judgements for vote in judgement.votes]
    latencies = [vote.latency_ms for vote in votes]
    scored = [j.score for j in judgements if j.status is JudgementStatus.OK]
    failed = sum(j.status is JudgementStatus.EXCEPTION for j in judgements)
    metrics = {
        "judge/steps": float(len(judgements)),
        "judge/votes": float(len(votes)),
        "judge/invalid_share": sum(not vote.ok for vote in votes) / max(1, len(votes)),
        "judge/failed_share": failed / len(judgements),
        "judge/latency_ms": sum(latencies) / max(1, len(latencies)),
        "judge/latency_ms_max": max(latencies, default=0.0),
    }
    return metrics | ({"judge/score": sum(scored) / len(scored)} if scored else {})


def _progress_metrics(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    measured = [t.scores.progress for t in trajectories if t.scores.progress is not None]
    steps = [step for progress in measured for step in progress.steps]
    if not steps:
        return {}
    deltas = [delta for progress in measured for delta in _deltas(progress, 1.0).values()]
    return {
        "progress/states": float(sum(step.changed for step in steps)),
        "progress/unknown_share": sum(step.status is not ProgressStatus.OK for step in steps) / len(steps),
        "progress/gained": sum(max(0.0, delta) for delta in deltas) / len(trajectories),
        "progress/lost": sum(max(0.0, -delta) for delta in deltas) / len(trajectories),
    }


def _judged(trajectory: Trajectory) -> dict[int, float]:
    """Return the judge's score of each turn, by its index."""
    if trajectory.scores.judgements is None:
        raise _unscored(trajectory, "judge")
    return {judgement.step_index: judgement.score for judgement in trajectory.scores.judgements}


def _measured(trajectory: Trajectory, settings: ProgressSettings) -> dict[int, float]:
    if trajectory.scores.progress is None:
        raise _unscored(trajectory, "progress")
    return _deltas(trajectory.scores.progress, settings.gamma)


def _deltas(progress: ProgressScores, gamma: float) -> dict[int, float]:
    """Return F of each turn, by its index."""
    rewards = shaping([step.score for step in progress.steps], before=progress.initial_score, gamma=gamma)
    return {step.step_index: reward for step, reward in zip(progress.steps, rewards, strict=True)}


def _unscored(trajectory: Trajectory, group: str) -> RolloutError:
    return RolloutError(
        f"rollout {trajectory.rollout_id} was collected without {group}: set {group}.enabled = false, or "
        "collect rollouts with it"
    )
