"""verl's advantages of forked rollouts and of groups with faults, beside Hone's; prints one line of JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import torch
from tensordict import TensorDict
from verl.protocol import DataProto
from verl.trainer.ppo.core_algos import AdvantageEstimator
from verl.trainer.ppo.v1.utils import compute_advantage_for_multi_trajectories

from hone.integrations.verl.rows import loop_outputs
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.train.algorithms.advantages import compute_advantages
from hone.train.algorithms.grpo import GrpoSettings
from hone.types import Node, TokenTree, Trajectory

RESOLVED, FAILED, FAULT = Outcome.RESOLVED, Outcome.NO_PATCH, Outcome.ENGINE_ERROR
GROUPS = {
    "a": [RESOLVED, FAILED, FAULT, FAILED],
    "b": [FAULT, RESOLVED, FAULT, FAULT],  # one is left
    "c": [RESOLVED, FAILED, RESOLVED, RESOLVED],
}


def node(parent: int | None, *tokens: int, sampled: bool = False) -> Node:
    count = len(tokens) if sampled else 0
    ids, logprobs = np.array(tokens, np.int32), np.full(count, -0.5, np.float32)
    version = np.zeros(count, np.int32)
    return Node(parent=parent, tokens=ids, sampled=sampled, logprobs=logprobs, version=version, turn=0)


def rollout(group: str, index: int, outcome: Outcome) -> Trajectory:
    tree = TokenTree([node(None, 1, 2), node(0, 3, 4, sampled=True), node(1, 5), node(2, 6, sampled=True)])
    tree.append(node(1, 7, 8))
    tree.append(node(4, 9, 10, sampled=True))
    return Trajectory(
        task_id="task",
        rollout_id=f"{group}-{index}",
        group_id=group,
        tree=tree,
        turns=(),
        messages=(),
        patch="",
        outcome=outcome,
        reward=OUTCOME_RULES[outcome].reward,
    )


def difference(rollouts: list[Trajectory], normalise_std: bool) -> float:
    """Return the largest difference of an advantage between verl and Hone."""
    own = compute_advantages(rollouts, GrpoSettings(normalise_std=normalise_std)).advantages
    keys: list[str] = []
    rows: list[dict[str, Any]] = []
    for each in rollouts:
        alone = sum(other.reward is not None for other in rollouts if other.group_id == each.group_id) == 1
        for branch, row in enumerate(loop_outputs(each, masked=alone, version=0)):
            keys.append(f"{each.rollout_id.replace('-', '_')}_{branch}")
            rows.append(row)
    width = max(len(row["response_mask"]) for row in rows)
    mask, rewards = torch.zeros(len(rows), width), torch.zeros(len(rows), width)
    for index, row in enumerate(rows):
        count = len(row["response_mask"])
        mask[index, :count] = torch.tensor(row["response_mask"], dtype=torch.float32)
        rewards[index, count - 1] = row["reward_score"]
    data = DataProto(
        batch=TensorDict({"response_mask": mask, "token_level_rewards": rewards}, batch_size=len(rows)),
        non_tensor_batch={"uid": np.array([key.split("_")[0] for key in keys], dtype=object)},
    )
    theirs = compute_advantage_for_multi_trajectories(
        data,
        batch_keys=keys,
        adv_estimator=AdvantageEstimator.GRPO,
        norm_adv_by_std_in_grpo=normalise_std,
    ).batch["advantages"]
    expected = torch.tensor([own[row["extra_fields"]["rollout_id"]] for row in rows])[:, None] * mask
    return float((theirs - expected).abs().max())


if __name__ == "__main__":
    rollouts = [
        rollout(group, index, outcome)
        for group, outcomes in GROUPS.items()
        for index, outcome in enumerate(outcomes)
    ]
    print("FOUND " + json.dumps([difference(rollouts, False), difference(rollouts, True)]))
