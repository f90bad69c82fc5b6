"""The interface between agents and the policy: chat, reply, tools."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, Protocol

from hone.types import Message, TokenTree

ToolSpec = dict[str, Any]  # {"name": ..., "description": ..., "parameters": JSON schema}
ToolSpecs = Sequence[ToolSpec] | None  # None: no tools
ToolCall = dict[str, Any]  # OpenAI's form: {"id": ..., "type": "function", "function": {"name", "arguments"}}


def tool_call(id: str, name: str, arguments: Any) -> ToolCall:
    """Return a tool call; `arguments`, any JSON value, become text."""
    function = {"name": name, "arguments": json.dumps(arguments, ensure_ascii=False)}
    return {"id": id, "type": "function", "function": function}


class CallKind(StrEnum):
    """The purpose of a call to the policy."""

    MAIN = "main"  # the agent's next turn
    AUXILIARY = "side"  # a title, a summary, a sub-agent: a branch of the same tree


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The text of one reply, and the node of the token tree that holds its tokens."""

    content: str  # without reasoning and tool calls
    node: int | None  # None: the engine gives no token ids, or the reply is scripted
    reasoning: str | None = None
    tool_calls: tuple[ToolCall, ...] = ()  # well-formed calls; "arguments" is JSON text
    malformed: tuple[str, ...] = ()  # the raw text of each unparsable tool call
    truncated: bool = False  # cut by max_tokens or the context limit
    prompt_tokens: int = 0
    sampled_tokens: int = 0

    def to_message(self) -> Message:
        """Return the assistant message that continues the conversation, reasoning and tool calls included."""
        message: Message = {"role": "assistant", "content": self.content}
        if self.reasoning:
            message["reasoning_content"] = self.reasoning
        if self.tool_calls:
            message["tool_calls"] = list(self.tool_calls)
        return message


class Chat(Protocol):
    """The policy as agents see it; `hone.policy.chat.Chat` is the token-exact implementation."""

    @property
    def tree(self) -> TokenTree: ...

    @property
    def max_prompt_tokens(self) -> int:
        """The longest prompt that leaves room for a whole reply."""
        ...

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        """Return the length of the prompt for these messages, in tokens."""
        ...

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply: ...
