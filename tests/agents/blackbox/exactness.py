"""What every rollout must hold to: its tree is what the engine was asked and said, and nothing else."""

from __future__ import annotations

import numpy as np

from hone.types import Trajectory
from tests.agents.blackbox.world import ScriptedEngine


def assert_exact(trajectory: Trajectory, engine: ScriptedEngine, rollout_id: str = "r0") -> None:
    """One sampled node per completion, with its ids, log-probabilities and versions, below its prompt."""
    tree = trajectory.tree
    sampled = [i for i, node in enumerate(tree.nodes) if node.sampled]
    prompts, said = engine.asked[rollout_id], engine.said[rollout_id]
    assert len(sampled) == len(said)
    for index, prompt, completion in zip(sampled, prompts, said, strict=True):
        node = tree.nodes[index]
        assert node.parent is not None
        assert tree.tokens(node.parent).tolist() == prompt
        assert np.array_equal(node.tokens, completion.token_ids)
        assert np.array_equal(node.logprobs, completion.logprobs)
        assert np.array_equal(node.version, completion.version)
    assert {turn.node for turn in trajectory.turns} <= set(sampled)
