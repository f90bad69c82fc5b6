"""A trajectory as a list of engine calls, for trainers that take prompt, completion and mask of each."""

from __future__ import annotations

from typing import Any

from hone.outcomes import OUTCOME_RULES, Fault
from hone.types import Trajectory


def engine_calls(trajectory: Trajectory, *, masked: bool) -> list[dict[str, Any]]:
    """Return one dictionary per sampled node of the token tree, in order; none after an infrastructure fault.

    Invariant: prompt and completion are the ids that the engine saw and sampled, and each sampled token has
    mask 1 in at most one call.

    Args:
        masked: whether all tokens get mask 0, for a rollout that only counts in the baseline.

    Example: a prompt of 2 tokens and a reply of 1: prompt_token_ids [5, 6], completion_token_ids [7],
    per_token_logps [-0.5], loss_mask [0, 0, 1].
    """
    if OUTCOME_RULES[trajectory.outcome].fault is Fault.INFRASTRUCTURE:
        return []
    tree, replies = trajectory.tree, {turn.node: turn.reply for turn in trajectory.turns}
    calls: list[dict[str, Any]] = []
    for index, node in enumerate(tree.nodes):
        if not node.sampled:
            continue
        prompt = [] if node.parent is None else tree.tokens(node.parent).tolist()
        completion = node.tokens.tolist()
        message = {"role": "assistant", "content": replies.get(index, "")}
        calls.append(
            {
                "node_id": f"{trajectory.rollout_id}/{index}",
                "prompt_token_ids": prompt,
                "completion_token_ids": completion,
                "per_token_logps": node.logprobs.tolist(),
                "loss_mask": [0] * len(prompt) + [0 if masked else 1] * len(completion),
                "response": {"choices": [{"message": message}]},
                "metadata": {"turn": node.turn, "version": node.version.tolist()},
            }
        )
    return calls
