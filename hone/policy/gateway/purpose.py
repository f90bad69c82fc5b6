"""What a call is for, told from its request alone, since clients do not say.

The main line is the conversation by which the agent works; it is known by its system prompt and its tools.
Rules, of which the first that holds decides:

1. The last message is a user's, and it or the system prompt begins as known clients ask for a title, a
   summary of their history, a check, or a forked worker: SIDE.
2. There is no main line yet: MAIN.
3. The main line has tools and this has none, or too few of them: SIDE.
4. The main line has no tools and this has some: MAIN. What came before was a prelude.
5. The system prompt is the main line's: MAIN. This is the next turn, or the first after the client compacted
   its history.
6. The history holds a reply of the main line: MAIN. The client's system prompt changes as it goes.
7. Otherwise: SIDE. This is a sub-agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.policy.reply import CallKind, ToolSpec
from hone.types import Message

# How known clients begin the message by which they ask for something beside their main line. Only beginnings
# of a user's message count, so that nothing that a tool printed makes a turn a side call.
_LAST = re.compile(
    "|".join(
        (
            # qwen-code: compaction within the conversation and beside it, next speaker, title, forked worker
            r"You are the component that summarizes a conversation",
            r"First, reason in your <analysis> block\. Then, produce the <state_snapshot>",
            r"Analyze \*only\* the content and structure of your immediately preceding response",
            r"Generate the session title now\.",
            r"<fork-boilerplate>",
            # claude-code: compaction, and the probe that it starts with
            r"(?:CRITICAL: Respond with TEXT ONLY.{0,2000}?)?Your task is to create a detailed summary of",
            r"quota\Z",
            # codex: compaction
            r"You are performing a CONTEXT CHECKPOINT COMPACTION\.",
        )
    ),
    re.DOTALL,
)
_SYSTEM = re.compile(
    "|".join(
        (
            r"Generate a (?:concise|short|succinct)\b.{0,40}\btitle\b",  # qwen-code, claude-code
            r"You are a title generator\b",  # opencode
            r"Summarize this coding conversation\b",  # claude-code
            r"Analyze if this message indicates a new conversation topic\b",  # claude-code
        )
    ),
)
_SHARE = 0.5  # of the main line's tools that its calls offer at least; clients add and drop some as they go


@dataclass(frozen=True, slots=True)
class Line:
    """What the main line is known by."""

    system: str
    tools: frozenset[str]


def line_of(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Line:
    """What a conversation with this request would be known by."""
    return Line(
        system="\n".join(message["content"] for message in _opening(messages)),
        tools=frozenset(tool["name"] for tool in tools),
    )


def purpose_of(
    messages: Sequence[Message],
    tools: Sequence[ToolSpec],
    main: Line | None,
    holds_main_reply: Callable[[], bool],
) -> CallKind:
    """What a request is for. `main` is the main line so far; `holds_main_reply` says whether one of its
    replies is among the messages."""
    line = line_of(messages, tools)
    last = messages[-1]
    if (last["role"] == "user" and _LAST.match(last["content"])) or _SYSTEM.match(line.system):
        return CallKind.AUXILIARY
    if main is None:
        return CallKind.MAIN
    if main.tools and len(main.tools & line.tools) < _SHARE * len(main.tools):
        return CallKind.AUXILIARY
    if not main.tools and line.tools:
        return CallKind.MAIN
    if line.system == main.system or holds_main_reply():
        return CallKind.MAIN
    return CallKind.AUXILIARY


def _opening(messages: Sequence[Message]) -> Sequence[Message]:
    """The system messages at the beginning."""
    end = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return messages[:end]
