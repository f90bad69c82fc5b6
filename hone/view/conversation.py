"""The messages of a trajectory as text, each reply with its turn."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.types import Message, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownMessage:
    """One message as pages show it."""

    role: str
    text: str
    reasoning: str = ""
    calls: tuple[str, ...] = ()  # tool calls: name and arguments
    turn: Turn | None = None  # the turn of a reply


def conversation(trajectory: Trajectory) -> list[ShownMessage]:
    """Return the messages; replies are joined with their turns where there is one reply per turn."""
    replies = [message for message in trajectory.messages if message.get("role") == "assistant"]
    turns = iter(trajectory.turns if len(replies) == len(trajectory.turns) else ())
    return [
        ShownMessage(
            role=str(message.get("role", "?")),
            text=_text(message.get("content")),
            reasoning=_text(message.get("reasoning_content")),
            calls=tuple(_call(call) for call in _calls(message)),
            turn=next(turns, None) if message.get("role") == "assistant" else None,
        )
        for message in trajectory.messages
    ]


def _text(content: Any) -> str:
    """Return a message's content as text; blocks without text are shown as JSON."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if isinstance(content, Sequence):
        return "\n".join(_block(block) for block in content)
    return json.dumps(content)


def _block(block: Any) -> str:
    if isinstance(block, Mapping) and isinstance(block.get("text"), str):
        return block["text"]
    return json.dumps(block)


def _calls(message: Message) -> Sequence[Any]:
    calls = message.get("tool_calls")
    return calls if isinstance(calls, (list, tuple)) else ()


def _call(call: Any) -> str:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return json.dumps(call)
    return f"{function.get('name')}({function.get('arguments')})"
