"""Who is in the baseline, who is trained, and with which advantage.

The rule that must not break: an infrastructure fault changes neither the baseline nor the gradient of anyone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np

from hone.outcomes import OUTCOME_RULES, Trained
from hone.train.algorithms.grpo import grpo
from hone.train.algorithms.rewards import Rewards
from hone.train.algorithms.rloo import rloo
from hone.train.errors import TrainError
from hone.train.settings import AlgorithmSettings
from hone.types import Trajectory

SAME_REWARD = 1e-8  # rewards closer than this are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Credit:
    """What an algorithm made of a batch. Every trajectory is in exactly one of the first three."""

    advantages: dict[str, float]  # rollout id -> advantage, of those that are trained
    masked: tuple[str, ...]  # rollout ids that are in the baseline and not trained
    left_out: tuple[str, ...]  # rollout ids of infrastructure faults
    flat_groups: tuple[str, ...]  # group ids whose rewards are all equal: their advantages are 0
    groups: int  # groups with at least one member in the baseline


def assign_credit(
    trajectories: Sequence[Trajectory], settings: AlgorithmSettings, *, masked: Collection[str] = ()
) -> Credit:
    """Advantages per rollout; the members of a group share its `group_id`, however many they are.

    `masked` are ids of rollouts that count in the baseline and are not trained; only outcomes that the table
    allows to be masked may be. Raises TrainError for one that may not, a baseline member without a reward, a
    reward that is not a finite number, or a rollout that occurs twice.
    """
    algorithm = _algorithm(settings)
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    left_out: list[str] = []
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.rollout_id in seen:
            raise TrainError(f"rollout {trajectory.rollout_id} is twice in the batch")
        seen.add(trajectory.rollout_id)
        if OUTCOME_RULES[trajectory.outcome].in_baseline:
            groups[trajectory.group_id].append(trajectory)
        else:
            left_out.append(trajectory.rollout_id)
    advantages: dict[str, float] = {}
    hidden: list[str] = []
    flat: list[str] = []
    for group_id, members in groups.items():
        rewards = np.array([_reward(member) for member in members], np.float64)
        is_flat = float(np.ptp(rewards)) <= SAME_REWARD
        if is_flat:
            flat.append(group_id)
        credit = np.zeros_like(rewards) if is_flat else algorithm(rewards)
        for member, advantage in zip(members, credit.tolist(), strict=True):
            if member.rollout_id in masked:
                _require_maskable(member)
                hidden.append(member.rollout_id)
            else:
                advantages[member.rollout_id] = advantage
    return Credit(
        advantages=advantages,
        masked=tuple(hidden),
        left_out=tuple(left_out),
        flat_groups=tuple(flat),
        groups=len(groups),
    )


def _algorithm(settings: AlgorithmSettings) -> Callable[[Rewards], Rewards]:
    match settings.name:
        case "grpo":
            return partial(grpo, normalise_std=settings.normalise_std)
        case "rloo":
            return rloo


def _reward(member: Trajectory) -> float:
    if member.reward is None or not np.isfinite(member.reward):
        raise TrainError(
            f"rollout {member.rollout_id} ended as {member.outcome} with reward {member.reward}: a member of "
            "the baseline needs a finite reward"
        )
    return member.reward


def _require_maskable(member: Trajectory) -> None:
    if OUTCOME_RULES[member.outcome].trained is not Trained.BY_CONFIG:
        raise TrainError(f"rollout {member.rollout_id} ended as {member.outcome}, which cannot be masked")
