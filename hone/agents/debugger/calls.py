"""The tool call of a reply: in the model's own format as its renderer reads it, or in one of two as text.

Which of the two it is, is a setting; neither is tried where the other is set.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any

from hone.policy.reply import Reply

NO_CALL = "Empty tool name in action: "
_FUNCTION = re.compile(r"<function=([^>\s]*)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    name: str
    arguments: Any  # an object, where it is well formed
    id: str | None = None  # of a native call, which its result has to name


class Unreadable(ValueError):
    """A reply holds no tool call that can be read; the message is the observation."""


def find_call(reply: Reply, *, native: bool) -> ToolUse:
    """The call that a reply makes: its last one. Raises Unreadable."""
    if native:
        return _native(reply)
    return _textual(reply)


def _native(reply: Reply) -> ToolUse:
    if reply.tool_calls:
        call = reply.tool_calls[-1]
        function = call["function"]
        try:
            arguments: Any = json.loads(function["arguments"] or "{}")
        except ValueError:
            arguments = function["arguments"]
        return ToolUse(name=str(function["name"]), arguments=arguments, id=call["id"])
    if reply.malformed:
        raise Unreadable(f"{NO_CALL}the tool call cannot be read: {reply.malformed[-1][:200]}")
    raise Unreadable(_nothing(reply))


def _textual(reply: Reply) -> ToolUse:
    text = reply.content
    end = text.rfind("</tool_call>")
    start = text.rfind("<tool_call>", 0, max(end, 0))
    if end >= 0 and start >= 0:
        inner = text[start + len("<tool_call>") : end]
        functions = _FUNCTION.findall(inner)
        return _function(*functions[-1]) if functions else _json(inner)
    functions = _FUNCTION.findall(text)
    if not functions:
        raise Unreadable(_nothing(reply))
    return _function(*functions[-1])


def _json(text: str) -> ToolUse:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        raise Unreadable(f"{NO_CALL}the tool call is no JSON: {text.strip()[:200]}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        raise Unreadable(f"{NO_CALL}the tool call has no name: {text.strip()[:200]}")
    return ToolUse(name=call["name"], arguments=call.get("arguments") or {})


def _function(name: str, body: str) -> ToolUse:
    if not name:
        raise Unreadable(f"{NO_CALL}the tool call has no name")
    parameters = {key: _unframed(value) for key, value in _PARAMETER.findall(body)}
    return ToolUse(name=name, arguments=parameters)


def _unframed(value: str) -> str:
    """A parameter's text without the line breaks next to its tags: indentation belongs to it."""
    return value.removeprefix("\n").removesuffix("\n")


def _nothing(reply: Reply) -> str:
    if reply.truncated:
        return f"{NO_CALL}the reply was cut off before it held a whole tool call. Think less at a time."
    return f"{NO_CALL}the reply holds no tool call. Call exactly one tool in each reply."
