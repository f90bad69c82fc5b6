"""From token trees to samples: which tokens are trained, and in which context.

The rule that must not break: weight > 0 only on tokens an engine sampled, each at most once over all
branches, and every array has the length of the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from hone.types import Node, Sample, TokenTree, Trajectory


def tree_samples(
    tree: TokenTree, *, rollout_id: str, group_id: str, advantage: float, weight: float = 1.0
) -> list[Sample]:
    """One sample per branch of `tree` that holds a sampled token no earlier branch holds.

    A token shared by several branches gets its weight in the first of them (its context is the same in all);
    a branch with nothing left to train gives no sample.

    Raises ValueError when the first token of a sequence is sampled: nothing predicts it.

    Example: root P; P -> A (sampled) -> E -> B (sampled), and P -> A -> F -> C (sampled):
        sample 0: P + A + E + B with weight [0]*|P| + [1]*|A| + [0]*|E| + [1]*|B|
        sample 1: P + A + F + C with weight [0]*|P| + [0]*|A| + [0]*|F| + [1]*|C|
    """
    samples: list[Sample] = []
    trained: set[int] = set()
    for branch in tree.branches():
        fresh = [
            i for i in branch if tree.nodes[i].sampled and len(tree.nodes[i].tokens) and i not in trained
        ]
        if not fresh:
            continue
        trained.update(fresh)
        sample = _branch_sample(tree, branch, set(fresh), rollout_id, group_id, advantage, weight)
        if sample.weight[0] > 0:
            raise ValueError(f"rollout {rollout_id}: the first token of a sequence cannot have been sampled")
        samples.append(sample)
    return samples


def build_samples(trajectories: Iterable[Trajectory], advantages: Mapping[str, float]) -> list[Sample]:
    """The samples of every trajectory that `advantages` (by rollout id) names, in order."""
    return [
        sample
        for trajectory in trajectories
        if trajectory.rollout_id in advantages
        for sample in tree_samples(
            trajectory.tree,
            rollout_id=trajectory.rollout_id,
            group_id=trajectory.group_id,
            advantage=advantages[trajectory.rollout_id],
        )
    ]


def _branch_sample(
    tree: TokenTree,
    branch: list[int],
    fresh: set[int],
    rollout_id: str,
    group_id: str,
    advantage: float,
    weight: float,
) -> Sample:
    nodes = [tree.nodes[i] for i in branch]
    weights = np.concatenate(
        [
            np.full(len(n.tokens), weight if i in fresh else 0.0, np.float32)
            for i, n in zip(branch, nodes, strict=True)
        ]
    )
    return Sample(
        rollout_id=rollout_id,
        group_id=group_id,
        tokens=np.concatenate([n.tokens for n in nodes]).astype(np.int32, copy=False),
        weight=weights,
        advantage=np.where(weights > 0, advantage, 0.0).astype(np.float32),
        logprobs=np.concatenate([_logprobs(n) for n in nodes]),
        version=np.concatenate([_version(n) for n in nodes]),
    )


def _logprobs(node: Node) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return node.logprobs if node.sampled else np.zeros(len(node.tokens), np.float32)


def _version(node: Node) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return node.version if node.sampled else np.full(len(node.tokens), -1, np.int32)
