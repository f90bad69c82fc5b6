"""The token tree of a rollout holds exactly the prompts and completions of its engine."""

from __future__ import annotations

import numpy as np

from hone.types import Trajectory
from tests.agents.blackbox.world import ScriptedEngine


def assert_exact(trajectory: Trajectory, engine: ScriptedEngine, rollout_id: str = "r0") -> None:
    """Assert one sampled node per completion, with its ids, logprobs and versions, below its prompt."""
    tree = trajectory.tree
    sampled = [i for i, node in enumerate(tree.nodes) if node.sampled]
    prompts, completions = engine.prompts[rollout_id], engine.completions[rollout_id]
    assert len(sampled) == len(completions)
    for index, prompt, completion in zip(sampled, prompts, completions, strict=True):
        node = tree.nodes[index]
        assert node.parent is not None
        assert tree.tokens(node.parent).tolist() == prompt
        assert np.array_equal(node.tokens, completion.token_ids)
        assert np.array_equal(node.logprobs, completion.logprobs)
        assert np.array_equal(node.version, completion.version)
    assert {turn.node for turn in trajectory.turns} <= set(sampled)
