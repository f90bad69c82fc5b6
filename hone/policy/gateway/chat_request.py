"""A request for a reply in any wire format, and the reply as its client sees it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from pydantic_core import from_json

from hone.policy.reply import Reply, ToolCall, ToolSpec
from hone.types import Message


@dataclass(frozen=True, slots=True, kw_only=True)
class ChatRequest:
    """A request in Hone's own form."""

    messages: list[Message]
    tools: tuple[ToolSpec, ...] = ()
    model: str = ""  # the client's name for the model, returned to it
    stream: bool = False
    stream_usage: bool = False  # whether the end of a stream reports the number of tokens
    stop: tuple[str, ...] = ()  # texts before which the visible reply ends
    calls_allowed: bool = True  # False: the client has tools but forbids their use, so none are offered
    overridden: Mapping[str, Any] = field(default_factory=dict[str, Any])  # the run decides about these
    ignored: tuple[str, ...] = ()  # fields without a meaning here
    characters: int = 0  # of all texts in the messages and tools
    body: Mapping[str, Any] = field(default_factory=dict[str, Any])  # as received


class Ending(StrEnum):
    """Why a reply ends, as clients see it."""

    STOP = "stop"
    STOP_TEXT = "stop_text"  # one of the client's own stop texts
    TOOL_CALLS = "tool_calls"
    LENGTH = "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientReply:
    """The part of a reply that its client sees."""

    content: str
    ending: Ending
    reasoning: str | None = None
    calls: tuple[ToolCall, ...] = ()
    stop_text: str | None = None

    def to_message(self) -> Message:
        """Return the reply as its client may send it back."""
        return {"role": "assistant", "content": self.content, "tool_calls": list(self.calls)}


def client_reply(reply: Reply, *, stop: Sequence[str] = (), calls_allowed: bool = True) -> ClientReply:
    """Return what a client sees of `reply`.

    A tool call that cannot be parsed, whose arguments are not a JSON object, or that the client forbade
    becomes text. A reply with a stop text is cut there; the tree keeps all of it, as sampled.
    """
    good = [call for call in reply.tool_calls if calls_allowed and _is_object(call["function"]["arguments"])]
    bad = [json.dumps(call["function"], ensure_ascii=False) for call in reply.tool_calls if call not in good]
    content = "\n".join(text for text in (reply.content, *reply.malformed, *bad) if text)
    calls = tuple(good)
    ending = Ending.TOOL_CALLS if calls else Ending.STOP
    if reply.truncated:
        ending = Ending.LENGTH
    found = [(content.find(text), text) for text in stop if text in content]
    at, stop_text = min(found, default=(0, None))
    if stop_text is not None:
        content, calls, ending = content[:at], (), Ending.STOP_TEXT
    return ClientReply(
        content=content,
        ending=ending,
        reasoning=reply.reasoning or None,
        calls=calls,
        stop_text=stop_text,
    )


def _is_object(arguments: str) -> bool:
    try:
        return isinstance(from_json(arguments, allow_inf_nan=False), dict)
    except ValueError:
        return False
