"""What single turns of a rollout earned, in the words of the terminal."""

from __future__ import annotations

from hone.types import Judgement, JudgementStatus, Trajectory, TurnProgress


def turn_scores(trajectory: Trajectory) -> dict[int, str]:
    """Turn index -> the judge's score, the hidden tests' and what they are worth; only of scored turns.

    Example: "judge +0.33 (3 of 3 votes)  progress 0.50  worth +0.83".
    """
    scores = trajectory.scores
    words: dict[int, list[str]] = {}
    for judgement in scores.judgements or ():
        words.setdefault(judgement.step_index, []).append(_judged(judgement))
    for step in scores.progress.steps if scores.progress else ():
        words.setdefault(step.step_index, []).append(_measured(step))
    for index, reward in trajectory.turn_rewards.items():
        words.setdefault(index, []).append(f"worth {reward:+.2f}")
    return {index: "  ".join(said) for index, said in sorted(words.items())}


def _judged(judgement: Judgement) -> str:
    votes = f"{len(judgement.valid_scores)} of {len(judgement.votes)} votes"
    if judgement.status is not JudgementStatus.OK:
        return f"judge {judgement.status} ({votes})"
    return f"judge {judgement.score:+.2f} ({votes})"


def _measured(step: TurnProgress) -> str:
    return f"progress {step.status}" if step.score is None else f"progress {step.score:.2f}"
