"""Trees, trajectories and samples for tests; imports neither torch nor transformers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.types import Node, Sample, TokenTree, Trajectory, Turn

VOCABULARY = 64


def multi_turn_samples(count: int = 12, *, group: int = 4, seed: int = 0, version: int = 0) -> list[Sample]:
    """Ragged samples of three turns each, with random advantages; engine log-probabilities are 0."""
    rng = np.random.default_rng(seed)
    samples: list[Sample] = []
    for i in range(count):
        parts = [(int(rng.integers(2, 12)), sampled) for _ in range(3) for sampled in (False, True)]
        weight = np.concatenate([np.full(n, float(s), np.float32) for n, s in parts])
        total = len(weight)
        samples.append(
            Sample(
                rollout_id=f"r{i}",
                group_id=f"g{i // group}",
                tokens=rng.integers(0, VOCABULARY, total).astype(np.int32),
                weight=weight,
                advantage=(weight * rng.normal()).astype(np.float32),
                logprobs=np.zeros(total, np.float32),
                version=np.where(weight > 0, version, -1).astype(np.int32),
            )
        )
    return samples


def rendered(parent: int | None, tokens: Sequence[int], turn: int = 0) -> Node:
    empty = np.zeros(0)
    return Node(
        parent=parent,
        tokens=np.array(tokens, np.int32),
        sampled=False,
        logprobs=empty.astype(np.float32),
        version=empty.astype(np.int32),
        turn=turn,
    )


def sampled(parent: int | None, tokens: Sequence[int], version: int = 0, turn: int = 0) -> Node:
    return Node(
        parent=parent,
        tokens=np.array(tokens, np.int32),
        sampled=True,
        logprobs=-np.arange(1, len(tokens) + 1, dtype=np.float32),
        version=np.full(len(tokens), version, np.int32),
        turn=turn,
    )


def trajectory(
    rollout_id: str,
    *,
    group_id: str = "g",
    outcome: Outcome = Outcome.RESOLVED,
    reward: float | None = None,
    tree: TokenTree | None = None,
) -> Trajectory:
    default = OUTCOME_RULES[outcome].reward
    return Trajectory(
        task_id="t",
        rollout_id=rollout_id,
        group_id=group_id,
        tree=tree or TokenTree([rendered(None, [1, 2, 3]), sampled(0, [4, 5])]),
        turns=(),
        messages=(),
        patch="",
        outcome=outcome,
        reward=default if reward is None else reward,
    )


def with_turns(
    made: Trajectory, nodes: Sequence[int | None], rewards: Mapping[int, float] | None = None
) -> Trajectory:
    """The trajectory with one turn per entry of `nodes`, and rewards of turns by their index."""
    turns = tuple(
        Turn(index=i, node=node, reply="", action="x", exit_code=0, observation="", seconds=0.0)
        for i, node in enumerate(nodes)
    )
    return replace(made, turns=turns, turn_rewards=rewards or {})
