"""From what was measured of single turns to rewards: pure functions over a trajectory's records.

    metadata["prm"], metadata["progress"]  ->  turn_rewards, metadata["step_wise"], metadata["reward"]

The records hold what a judge and the hidden tests said, without any coefficient, so that a stored rollout can
be weighed again (`hone replay`). The rule that must not break: everything is joined by the turn's index,
never by position; a turn that nobody scored has no entry.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from hone.grading.progress import StateStatus, shaping
from hone.grading.settings import JudgeSettings, ProgressSettings
from hone.rollout.errors import RolloutError
from hone.rollout.rewards import solved
from hone.types import TokenTree, Trajectory, Turn

Record = Mapping[str, Any]


def weigh(trajectory: Trajectory, judge: JudgeSettings, progress: ProgressSettings) -> Trajectory:
    """The trajectory with the rewards that these settings make of its records; without any, as it is.

    turn reward = judge.coefficient * score + progress.coefficient * F    (see `hone.grading.progress`)
    final score = outcome reward + judge.coefficient * mean(scores) + progress.coefficient * sum(F)

    A rollout without an outcome reward gets none for its turns either. Raises RolloutError where settings
    reward what was never measured.
    """
    if trajectory.reward is None or not (judge.rewards or progress.rewards):
        return dataclasses.replace(trajectory, turn_rewards={})
    scores = _scores(trajectory, "prm", "judge") if judge.rewards else {}
    shaped = _shaped(trajectory, progress) if progress.rewards else {}
    mean = sum(scores.values()) / len(scores) if scores else 0.0
    total = sum(shaped.values())
    turn_rewards = {
        index: judge.coefficient * scores.get(index, 0.0) + progress.coefficient * shaped.get(index, 0.0)
        for index in sorted({*scores, *shaped})
    }
    reward = {
        "score": trajectory.reward + judge.coefficient * mean + progress.coefficient * total,
        "acc": float(solved(trajectory.outcome, trajectory.verdict)),
        "outcome_reward": trajectory.reward,
        "prm_step_mean": mean,
        "prm_step_coef": judge.coefficient,
        "progress_sum": total,
        "progress_coef": progress.coefficient,
    }
    step_wise = _step_wise(trajectory, trajectory.reward, turn_rewards)
    metadata = {**trajectory.metadata, "reward": reward, "step_wise": step_wise}
    return dataclasses.replace(trajectory, turn_rewards=turn_rewards, metadata=metadata)


def final_score(trajectory: Trajectory) -> float:
    """Outcome reward and what the turns add to it; see `weigh`. Raises RolloutError where it was not made."""
    made: Record | None = trajectory.metadata.get("reward")
    if made is None:
        raise RolloutError(
            f"rollout {trajectory.rollout_id} has no final score, since none of its turns was scored: set "
            "train.algorithm.reward = 'outcome', or collect rollouts with judge.enabled or progress.enabled"
        )
    return float(made["score"])


def summary(trajectories: Sequence[Trajectory]) -> dict[str, float]:
    """Metrics of a batch's judgements and progress; names without a value are left out."""
    details = [step for t in trajectories for step in t.metadata.get("prm", {}).get("step_details", ())]
    states = [state for t in trajectories for state in t.metadata.get("progress", {}).get("steps", ())]
    rewards = [reward for t in trajectories for reward in t.turn_rewards.values()]
    metrics: dict[str, float] = {}
    if rewards:
        metrics["turn_reward"] = sum(rewards) / len(rewards)
    if details:
        metrics |= _judge_metrics(details)
    if states:
        metrics |= _progress_metrics(trajectories, states)
    return metrics


def _judge_metrics(details: Sequence[Record]) -> dict[str, float]:
    votes = [vote for step in details for vote in step["votes"]]
    latencies = [float(vote["latency_ms"]) for vote in votes]
    scored = [float(step["mean_score"]) for step in details if step["status"] == "ok"]
    metrics = {
        "judge/steps": float(len(details)),
        "judge/votes": float(len(votes)),
        "judge/invalid_share": sum(not vote["ok"] for vote in votes) / max(1, len(votes)),
        "judge/failed_share": sum(step["status"] == "exception" for step in details) / len(details),
        "judge/latency_ms": sum(latencies) / max(1, len(latencies)),
        "judge/latency_ms_max": max(latencies, default=0.0),
    }
    return metrics | ({"judge/score": sum(scored) / len(scored)} if scored else {})


def _progress_metrics(trajectories: Sequence[Trajectory], states: Sequence[Record]) -> dict[str, float]:
    deltas = [
        delta
        for trajectory in trajectories
        if "progress" in trajectory.metadata
        for delta in _deltas(trajectory.metadata["progress"], 1.0).values()
    ]
    return {
        "progress/states": float(sum(bool(state["changed"]) for state in states)),
        "progress/unknown_share": sum(state["status"] != StateStatus.OK for state in states) / len(states),
        "progress/gained": sum(max(0.0, delta) for delta in deltas) / len(trajectories),
        "progress/lost": sum(max(0.0, -delta) for delta in deltas) / len(trajectories),
    }


def _scores(trajectory: Trajectory, record: str, group: str) -> dict[int, float]:
    made = _record(trajectory, record, group)
    return {int(step["step_index"]): float(step["mean_score"]) for step in made["step_details"]}


def _shaped(trajectory: Trajectory, settings: ProgressSettings) -> dict[int, float]:
    return _deltas(_record(trajectory, "progress", "progress"), settings.gamma)


def _deltas(record: Record, gamma: float) -> dict[int, float]:
    """F of each turn, by its index."""
    steps: Sequence[Record] = record["steps"]
    rewards = shaping([step["score"] for step in steps], before=record["initial_score"], gamma=gamma)
    return {int(step["step_index"]): reward for step, reward in zip(steps, rewards, strict=True)}


def _record(trajectory: Trajectory, name: str, group: str) -> Record:
    made: Record | None = trajectory.metadata.get(name)
    if made is None:
        raise RolloutError(
            f"rollout {trajectory.rollout_id} was made without {group}: set {group}.enabled = false, or "
            "collect rollouts with it"
        )
    return made


def _step_wise(trajectory: Trajectory, outcome: float, turn_rewards: Mapping[int, float]) -> dict[str, Any]:
    """What each scored turn is worth, and where its tokens lie in the branch that ends with them."""
    turns = {turn.index: turn for turn in trajectory.turns}
    return {
        "step_scores": list(turn_rewards.values()),
        "step_indices": list(turn_rewards),
        "step_token_spans": [_span(trajectory.tree, turns.get(index)) for index in turn_rewards],
        "step_scores_with_outcome": [reward + outcome for reward in turn_rewards.values()],
        "outcome_reward": outcome,
    }


def _span(tree: TokenTree, turn: Turn | None) -> list[int] | None:
    """[first, end) of a turn's tokens on the path to them; None for a turn without tokens."""
    if turn is None or turn.node is None:
        return None
    end = len(tree.tokens(turn.node))
    return [end - len(tree.nodes[turn.node].tokens), end]
