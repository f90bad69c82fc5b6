"""Classify a call as main or auxiliary by its request, since clients do not say.

The main line is the conversation in which the agent works, identified by its system prompt and its tools. The
first rule that applies decides:

1. The last message is a user's, and it or the system prompt begins as known clients request a title, a
   summary of their history, a check, or a forked worker: AUXILIARY.
2. There is no main line yet: MAIN.
3. The main line has tools, and this call has none or too few of them: AUXILIARY.
4. The main line has no tools, and this call has some: MAIN. The earlier calls were a prelude.
5. The system prompt is the main line's: MAIN. This is the next turn, or the first after the client compacted
   its history.
6. The history contains a reply of the main line: MAIN. This client changes its system prompt.
7. Otherwise: AUXILIARY. This is a sub-agent.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from hone.policy.reply import CallKind, ToolSpec
from hone.types import Message

# The beginnings of known clients' auxiliary requests. Only the beginning of a user's message counts, so no
# output of a tool makes a call auxiliary.
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
_SHARE = 0.5  # of the main line's tools that each of its calls offers at least; clients add and drop some


@dataclass(frozen=True, slots=True)
class Line:
    """The properties that identify the main line."""

    system: str
    tools: frozenset[str]


def line_of(messages: Sequence[Message], tools: Sequence[ToolSpec]) -> Line:
    """Return the properties of a conversation with this request."""
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
    """Return the kind of a request.

    `main` is the main line so far; `holds_main_reply` returns whether one of its replies is in the messages.
    """
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
    """Return the system messages at the beginning."""
    end = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    return messages[:end]
