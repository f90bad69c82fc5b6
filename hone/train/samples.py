"""From token trees to samples: one sequence per branch, with a weight per token.

Invariant: weight > 0 only on tokens that an engine sampled, each at most once over all branches, and every
array has the length of the branch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

import numpy as np

from hone.train.algorithms import Advantages
from hone.train.errors import TrainError
from hone.types import UNKNOWN_EXPERT, Float32, Node, Routing, Sample, TokenTree, Trajectory

NO_NODES: Mapping[int, float] = {}


def tree_samples(
    tree: TokenTree,
    *,
    rollout_id: str,
    group_id: str,
    advantage: float,
    node_advantages: Mapping[int, float] = NO_NODES,
) -> list[Sample]:
    """Return one sample per branch of `tree` with a sampled token that no earlier branch contains.

    The advantage of a node's tokens is its entry in `node_advantages`, or else `advantage`. A token that
    several branches share has weight in the first of them (its context is the same in all).

    Raises ValueError when the first token of a sequence is sampled, because no position predicts it.

    Example: root P; P -> A (sampled) -> E -> B (sampled), and P -> A -> F -> C (sampled):
        sample 0: P + A + E + B with weight [0]*|P| + [1]*|A| + [0]*|E| + [1]*|B|
        sample 1: P + A + F + C with weight [0]*|P| + [0]*|A| + [0]*|F| + [1]*|C|
    """
    samples: list[Sample] = []
    for branch, fresh in trained_branches(tree):
        fresh_advantages = {i: node_advantages.get(i, advantage) for i in fresh}
        sample = _branch_sample(tree, branch, fresh_advantages, rollout_id, group_id)
        if sample.weight[0] > 0:
            raise ValueError(
                f"rollout {rollout_id}: its first token is marked as sampled, which is impossible"
            )
        samples.append(sample)
    return samples


def trained_branches(tree: TokenTree) -> Iterator[tuple[list[int], list[int]]]:
    """Yield the branches that become samples, in order, each with its nodes that no earlier one contains."""
    trained: set[int] = set()
    for branch in tree.branches():
        fresh = [
            i for i in branch if tree.nodes[i].sampled and len(tree.nodes[i].tokens) and i not in trained
        ]
        if fresh:
            trained.update(fresh)
            yield branch, fresh


def build_samples(trajectories: Iterable[Trajectory], advantages: Advantages) -> list[Sample]:
    """Return the samples of every trajectory with an advantage, in order."""
    return [
        sample
        for trajectory in trajectories
        if trajectory.rollout_id in advantages.advantages
        for sample in tree_samples(
            trajectory.tree,
            rollout_id=trajectory.rollout_id,
            group_id=trajectory.group_id,
            advantage=advantages.advantages[trajectory.rollout_id],
            node_advantages=turn_nodes(trajectory, advantages.turn_advantages.get(trajectory.rollout_id, {})),
        )
    ]


def turn_nodes(trajectory: Trajectory, turn_advantages: Mapping[int, float]) -> dict[int, float]:
    """Return node -> advantage from turn -> advantage, without nodes outside turns (auxiliary calls).

    Raises TrainError when a turn's node is not sampled, or when two turns have the same node.
    """
    nodes: dict[int, float] = {}
    for turn in trajectory.turns:
        if turn.node is None or turn.index not in turn_advantages:
            continue
        where = f"rollout {trajectory.rollout_id}: turn {turn.index} names node {turn.node}"
        tree = trajectory.tree
        if not 0 <= turn.node < len(tree.nodes) or not tree.nodes[turn.node].sampled:
            raise TrainError(f"{where}, which is not a sampled node")
        if turn.node in nodes:
            raise TrainError(f"{where}, which belongs to another turn, too")
        nodes[turn.node] = turn_advantages[turn.index]
    return nodes


def _branch_sample(
    tree: TokenTree,
    branch: list[int],
    node_advantages: Mapping[int, float],
    rollout_id: str,
    group_id: str,
) -> Sample:
    """Return the sample of a branch; `node_advantages` holds the nodes that this branch trains."""
    nodes = [tree.nodes[i] for i in branch]

    def spread(values: Iterable[float]) -> Float32:
        parts = [np.full(len(n.tokens), v, np.float32) for n, v in zip(nodes, values, strict=True)]
        return np.concatenate(parts)

    return Sample(
        rollout_id=rollout_id,
        group_id=group_id,
        tokens=np.concatenate([n.tokens for n in nodes]).astype(np.int32, copy=False),
        weight=spread(1.0 if i in node_advantages else 0.0 for i in branch),
        advantage=spread(node_advantages.get(i, 0.0) for i in branch),
        logprobs=np.concatenate([_logprobs(n) for n in nodes]),
        version=np.concatenate([_version(n) for n in nodes]),
        routing=_routing(nodes),
    )


def _routing(nodes: Sequence[Node]) -> Routing | None:
    """Return the routing of all tokens; None if no node has any."""
    known = next((n.routing for n in nodes if n.routing is not None), None)
    if known is None:
        return None
    shape = known.shape[1:]
    return np.concatenate(
        [
            np.full((len(n.tokens), *shape), UNKNOWN_EXPERT, known.dtype) if n.routing is None else n.routing
            for n in nodes
        ]
    )


def _logprobs(node: Node) -> np.ndarray[tuple[int], np.dtype[np.float32]]:
    return node.logprobs if node.sampled else np.zeros(len(node.tokens), np.float32)


def _version(node: Node) -> np.ndarray[tuple[int], np.dtype[np.int32]]:
    return node.version if node.sampled else np.full(len(node.tokens), -1, np.int32)
