"""What single turns of a rollout earned, in the words of the terminal."""

from __future__ import annotations

from typing import Any

from hone.types import Trajectory


def turn_scores(trajectory: Trajectory) -> dict[int, str]:
    """Turn index -> the judge's score, the hidden tests' and what they are worth; only of scored turns.

    Example: "judge +0.33 (3 of 3 votes)  progress 0.50  worth +0.83".
    """
    metadata = trajectory.metadata
    words: dict[int, list[str]] = {}
    for step in metadata.get("prm", {}).get("step_details", ()):
        words.setdefault(int(step["step_index"]), []).append(_judged(step))
    for step in metadata.get("progress", {}).get("steps", ()):
        words.setdefault(int(step["step_index"]), []).append(_measured(step))
    for index, reward in trajectory.turn_rewards.items():
        words.setdefault(index, []).append(f"worth {reward:+.2f}")
    return {index: "  ".join(said) for index, said in sorted(words.items())}


def _judged(step: dict[str, Any]) -> str:
    votes = f"{step['valid_vote_count']} of {len(step['votes'])} votes"
    if step["status"] != "ok":
        return f"judge {step['status']} ({votes})"
    return f"judge {step['mean_score']:+.2f} ({votes})"


def _measured(step: dict[str, Any]) -> str:
    return f"progress {step['status']}" if step["score"] is None else f"progress {step['score']:.2f}"
