"""Compute the advantages of a batch and select the rollouts of the baseline and of training.

Invariant: an infrastructure fault changes neither the baseline nor the gradient of other rollouts.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.outcomes import OUTCOME_RULES, Trained
from hone.rollout.errors import RolloutError
from hone.rollout.rewards import final_score
from hone.train.algorithms.contract import AlgorithmSettings, Group, GroupAdvantages, RewardSettings
from hone.train.algorithms.custom import load
from hone.train.errors import TrainError
from hone.types import Trajectory

NO_TURNS: Mapping[int, float] = {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """Advantages of a batch. Every trajectory is in exactly one of the first three fields."""

    advantages: dict[str, float]  # rollout id -> advantage, of trained rollouts
    masked: tuple[str, ...]  # rollout ids in the baseline that are not trained
    excluded: tuple[str, ...]  # rollout ids of infrastructure faults
    zero_variance_groups: tuple[str, ...]  # group ids whose rewards are all equal: their advantages are 0
    groups: int  # groups with at least one member in the baseline
    turn_advantages: dict[str, dict[int, float]] = field(  # rollout id -> turn index -> advantage
        default_factory=dict[str, dict[int, float]]  # absent rollouts: `advantages` holds for all their turns
    )


def compute_advantages(
    trajectories: Sequence[Trajectory], settings: AlgorithmSettings, *, masked: Collection[str] = ()
) -> Advantages:
    """Return the advantages per rollout, and per turn where the algorithm has them.

    Trajectories with the same `group_id` form a group of any size.

    Args:
        masked: ids of rollouts that count in the baseline but are not trained.
    Raises:
        TrainError: `OUTCOME_RULES` does not allow to mask a rollout of `masked`, a reward of the baseline is
            missing or not finite, or a rollout occurs twice.
    """
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    excluded: list[str] = []
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.rollout_id in seen:
            raise TrainError(f"the batch contains rollout {trajectory.rollout_id} twice")
        seen.add(trajectory.rollout_id)
        if OUTCOME_RULES[trajectory.outcome].in_baseline:
            groups[trajectory.group_id].append(trajectory)
        else:
            excluded.append(trajectory.rollout_id)
    advantages: dict[str, float] = {}
    turn_advantages: dict[str, dict[int, float]] = {}
    masked_ids: list[str] = []
    zero_variance: list[str] = []
    given = [
        Group(
            rewards=np.array([_reward(member, settings) for member in members], np.float64),
            rollouts=tuple(members),
        )
        for members in groups.values()
    ]
    found = settings.algorithm.advantages(given, settings)
    for (group_id, members), result in zip(groups.items(), found, strict=True):
        _require_complete(result, members, settings.named)
        own, of_turns = result.rollouts.tolist(), result.turns or [NO_TURNS] * len(members)
        if not any(own) and not any(value for turns in of_turns for value in turns.values()):
            zero_variance.append(group_id)
        for member, advantage, turns in zip(members, own, of_turns, strict=True):
            if member.rollout_id in masked:
                _require_maskable(member)
                masked_ids.append(member.rollout_id)
                continue
            advantages[member.rollout_id] = advantage
            if turns:
                turn_advantages[member.rollout_id] = dict(turns)
    return Advantages(
        advantages=advantages,
        masked=tuple(masked_ids),
        excluded=tuple(excluded),
        zero_variance_groups=tuple(zero_variance),
        groups=len(groups),
        turn_advantages=turn_advantages,
    )


def _reward(member: Trajectory, settings: AlgorithmSettings) -> float:
    reward = member.reward
    if reward is not None and isinstance(settings, RewardSettings) and settings.reward != "outcome":
        reward = _final(member) if settings.reward == "final" else float(load(settings.reward)(member))
    if reward is None or not np.isfinite(reward):
        raise TrainError(
            f"rollout {member.rollout_id} ended as {member.outcome} with reward {reward}: a member of the "
            "baseline needs a finite reward"
        )
    return reward


def _final(member: Trajectory) -> float:
    try:
        return final_score(member)
    except RolloutError as error:
        raise TrainError(str(error)) from error


def _require_complete(result: GroupAdvantages, members: Sequence[Trajectory], named: str) -> None:
    values = [*result.rollouts.tolist(), *(value for turns in result.turns for value in turns.values())]
    lengths = {len(result.rollouts), len(result.turns or members)}
    if lengths != {len(members)} or not np.isfinite(values).all():
        raise TrainError(
            f"the algorithm ({named}) returned the advantages {values} for {len(members)} rollouts: it must "
            "return one finite number per rollout"
        )


def _require_maskable(member: Trajectory) -> None:
    if OUTCOME_RULES[member.outcome].trained is not Trained.BY_CONFIG:
        raise TrainError(f"rollout {member.rollout_id} ended as {member.outcome}, which cannot be masked")
