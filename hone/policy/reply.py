"""What a chat answers an agent with."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The text of one reply, and the node of the token tree that holds its tokens."""

    content: str
    node: int | None
    tool_calls: tuple[dict[str, Any], ...] = ()  # OpenAI's form: {"type": "function", "function": {...}}
    truncated: bool = False  # cut by max_tokens or the context limit
    sampled_tokens: int = 0
