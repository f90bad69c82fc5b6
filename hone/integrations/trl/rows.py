"""From a group of rollouts to the rows that TRL trains; imports nothing of TRL."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from hone.config import ConfigError
from hone.integrations.rollouts.branches import branches
from hone.rollout.rewards import solved
from hone.train.algorithms import compute_advantages
from hone.train.algorithms.contract import AlgorithmSettings
from hone.types import Float32, Int32, Trajectory

# Their advantages follow from one group alone, one number per rollout.
ALGORITHMS = ("grpo", "dr_grpo", "rloo", "opo", "dapo")


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One branch of a rollout, by the names of TRL's `RolloutSample`."""

    input_ids: Int32  # [T]
    completion_mask: Int32  # [T]; 1: trained
    old_log_probs: Float32  # [T]; the engine's; 0 where the mask is 0
    advantage: float
    model_version: int  # the oldest that sampled a trained token
    group_id: int
    metrics: Mapping[str, float]


def require_group_advantages(settings: AlgorithmSettings) -> None:
    """Raise ConfigError for an algorithm whose advantages need more than one group or differ by turn."""
    name = getattr(settings, "name", "")
    if name not in ALGORITHMS:
        raise ConfigError(
            f'train.algorithm.name = "{name}" does not give TRL one advantage per rollout from its group '
            f"alone: set one of {', '.join(ALGORITHMS)}"
        )


def group_rows(
    group: Sequence[Trajectory],
    algorithm: AlgorithmSettings,
    *,
    group_id: int,
    is_masked: Callable[[Trajectory], bool],
) -> list[Row]:
    """Return the rows of a group's trained rollouts, with Hone's advantages.

    Infrastructure faults change neither the baseline nor the rows; masked rollouts are in the baseline only.
    """
    masked = [each.rollout_id for each in group if is_masked(each)]
    advantages = compute_advantages(group, algorithm, masked=masked).advantages
    return [
        row
        for each in group
        if each.rollout_id in advantages
        for row in _rows(each, advantages[each.rollout_id], group_id)
    ]


def _rows(trajectory: Trajectory, advantage: float, group_id: int) -> list[Row]:
    assert trajectory.reward is not None, "a trained rollout has a reward"
    metrics = {
        "reward": trajectory.reward,
        "resolved": float(solved(trajectory.outcome, trajectory.verdict)),
        "turns": float(len(trajectory.turns)),
    }
    rows: list[Row] = []
    for branch in branches(trajectory):
        if (version := branch.min_version) is None:
            continue  # nothing was sampled
        context = len(branch.prompt_ids)
        zeros = np.zeros(context, np.int32)
        rows.append(
            Row(
                input_ids=np.concatenate([branch.prompt_ids, branch.response_ids]),
                completion_mask=np.concatenate([zeros, branch.response_mask]),
                old_log_probs=np.concatenate([zeros.astype(np.float32), branch.logprobs]),
                advantage=advantage,
                model_version=version,
                group_id=group_id,
                metrics=metrics,
            )
        )
    return rows
