"""Who is in the baseline, who is trained, and with which advantage.

The rule that must not break: an infrastructure fault changes neither the baseline nor the gradient of anyone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from hone.outcomes import OUTCOME_RULES, Trained
from hone.rollout.errors import RolloutError
from hone.rollout.step_rewards import final_score
from hone.train.algorithms.grpo import grpo
from hone.train.algorithms.rewards import SAME_REWARD, Rewards
from hone.train.algorithms.rloo import rloo
from hone.train.algorithms.step_wise import step_wise
from hone.train.errors import TrainError
from hone.train.settings import AlgorithmSettings
from hone.types import Trajectory


@dataclass(frozen=True, slots=True, kw_only=True)
class Advantages:
    """What an algorithm made of a batch. Every trajectory is in exactly one of the first three."""

    advantages: dict[str, float]  # rollout id -> advantage, of those that are trained
    masked: tuple[str, ...]  # rollout ids that are in the baseline and not trained
    excluded: tuple[str, ...]  # rollout ids of infrastructure faults
    zero_variance_groups: tuple[str, ...]  # group ids whose rewards are all equal: their advantages are 0
    groups: int  # groups with at least one member in the baseline
    turn_advantages: dict[str, dict[int, float]] = field(  # rollout id -> turn index -> advantage, of the
        default_factory=dict[str, dict[int, float]]  # trained; a rollout that has none here goes as a whole
    )


def compute_advantages(
    trajectories: Sequence[Trajectory], settings: AlgorithmSettings, *, masked: Collection[str] = ()
) -> Advantages:
    """Advantages per rollout, and per turn where the algorithm has them.

    The members of a group share its `group_id`, however many they are.

    `masked` are ids of rollouts that count in the baseline and are not trained; only outcomes that the table
    allows to be masked may be. Raises TrainError for one that may not, a baseline member without a reward, a
    reward that is not a finite number, or a rollout that occurs twice.
    """
    groups: dict[str, list[Trajectory]] = defaultdict(list)
    excluded: list[str] = []
    seen: set[str] = set()
    for trajectory in trajectories:
        if trajectory.rollout_id in seen:
            raise TrainError(f"rollout {trajectory.rollout_id} is twice in the batch")
        seen.add(trajectory.rollout_id)
        if OUTCOME_RULES[trajectory.outcome].in_baseline:
            groups[trajectory.group_id].append(trajectory)
        else:
            excluded.append(trajectory.rollout_id)
    advantages: dict[str, float] = {}
    turn_advantages: dict[str, dict[int, float]] = {}
    hidden: list[str] = []
    zero_variance: list[str] = []
    for group_id, members in groups.items():
        own, of_turns = _of_group(members, settings)
        if not any(own) and not any(value for turns in of_turns for value in turns.values()):
            zero_variance.append(group_id)
        for member, advantage, turns in zip(members, own, of_turns, strict=True):
            if member.rollout_id in masked:
                _require_maskable(member)
                hidden.append(member.rollout_id)
                continue
            advantages[member.rollout_id] = advantage
            if turns:
                turn_advantages[member.rollout_id] = turns
    return Advantages(
        advantages=advantages,
        masked=tuple(hidden),
        excluded=tuple(excluded),
        zero_variance_groups=tuple(zero_variance),
        groups=len(groups),
        turn_advantages=turn_advantages,
    )


def _of_group(
    members: Sequence[Trajectory], settings: AlgorithmSettings
) -> tuple[list[float], list[dict[int, float]]]:
    """Advantages of the members of one group, and of their turns where the algorithm has them."""
    rewards = np.array([_reward(member, settings) for member in members], np.float64)
    if settings.name == "step_wise":
        turns = [[turn.index for turn in member.turns] for member in members]
        own, of_turns = step_wise(rewards, turns, [_turn_rewards(member) for member in members])
        return own.tolist(), of_turns
    return _whole(rewards, settings).tolist(), [{} for _ in members]


def _whole(rewards: Rewards, settings: AlgorithmSettings) -> Rewards:
    if float(np.ptp(rewards)) <= SAME_REWARD:
        return np.zeros_like(rewards)
    if settings.name == "rloo":
        return rloo(rewards)
    return grpo(rewards, normalise_std=settings.normalise_std)


def _reward(member: Trajectory, settings: AlgorithmSettings) -> float:
    reward = member.reward
    if reward is not None and settings.reward == "final":
        try:
            reward = final_score(member)
        except RolloutError as error:
            raise TrainError(str(error)) from error
    if reward is None or not np.isfinite(reward):
        raise TrainError(
            f"rollout {member.rollout_id} ended as {member.outcome} with reward {reward}: a member of the "
            "baseline needs a finite reward"
        )
    return reward


def _turn_rewards(member: Trajectory) -> Mapping[int, float]:
    known = {turn.index for turn in member.turns}
    wrong = {i: r for i, r in member.turn_rewards.items() if i not in known or not np.isfinite(r)}
    if wrong:
        raise TrainError(
            f"rollout {member.rollout_id} has turn rewards {wrong}: each needs a turn of that index and a "
            "finite number"
        )
    return member.turn_rewards


def _require_maskable(member: Trajectory) -> None:
    if OUTCOME_RULES[member.outcome].trained is not Trained.BY_CONFIG:
        raise TrainError(f"rollout {member.rollout_id} ended as {member.outcome}, which cannot be masked")
