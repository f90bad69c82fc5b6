"""Scores of single turns as text."""

from __future__ import annotations

from hone.types import Judgement, JudgementStatus, Trajectory, TurnProgress


def turn_scores(trajectory: Trajectory) -> dict[int, str]:
    """Return turn index -> judge score, progress of the hidden tests and turn reward; only scored turns.

    Example: "judge +0.33 (3 of 3 votes)  progress 0.50  reward +0.83".
    """
    scores = trajectory.scores
    words: dict[int, list[str]] = {}
    for judgement in scores.judgements or ():
        words.setdefault(judgement.step_index, []).append(_judgement_text(judgement))
    for step in scores.progress.steps if scores.progress else ():
        words.setdefault(step.step_index, []).append(_progress_text(step))
    for index, reward in trajectory.turn_rewards.items():
        words.setdefault(index, []).append(f"reward {reward:+.2f}")
    return {index: "  ".join(texts) for index, texts in sorted(words.items())}


def _judgement_text(judgement: Judgement) -> str:
    votes = f"{len(judgement.valid_scores)} of {len(judgement.votes)} votes"
    if judgement.status is not JudgementStatus.OK:
        return f"judge {judgement.status} ({votes})"
    return f"judge {judgement.score:+.2f} ({votes})"


def _progress_text(step: TurnProgress) -> str:
    return f"progress {step.status}" if step.score is None else f"progress {step.score:.2f}"
