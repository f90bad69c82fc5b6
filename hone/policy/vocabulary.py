"""Whether stored tokens are those of a tokenizer."""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

from typing import TYPE_CHECKING

from hone.types import Trajectory

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

_COMPARED = 200  # characters of a message


def knows_tokens(tokenizer: PreTrainedTokenizerBase, trajectory: Trajectory) -> bool:
    """Return whether a sampled trajectory's tokens are those of `tokenizer`.

    They are if all ids are in its vocabulary and the first branch decodes to text that contains the beginning
    of the first messages; the ids of another tokenizer decode to other text.
    """
    nodes = trajectory.tree.nodes
    if max(int(node.tokens.max(initial=0)) for node in nodes) >= len(tokenizer):
        return False
    branch = next(trajectory.tree.branches())
    text = str(tokenizer.decode(trajectory.tree.tokens(branch[-1]).tolist()))
    said = [
        str(message.get("content") or "").strip()[:_COMPARED].strip() for message in trajectory.messages[:2]
    ]
    return all(part in text for part in said)
