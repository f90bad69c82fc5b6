"""Compare messages and normalise them for chat templates.

Clients return a message in another form than they received it. Two messages are equal if role, text and tool
calls (names and arguments, in order) are equal. Content may be text or a list of text parts, arguments JSON
text or an object. Ids of tool calls, names of tool results, unknown keys and white space around an
assistant's text are ignored. Reasoning is compared separately, since a client may omit it (`reasoning_of`).
"""

# pyright: reportMissingTypeStubs=false
from __future__ import annotations

import copy
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from hone.policy.errors import PolicyError
from hone.policy.reply import Reply, ToolSpec, tool_call
from hone.types import Message

if TYPE_CHECKING:
    from renderers import ParsedResponse

Key = tuple[str, str, str]  # role, text, tool calls as JSON


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """The tools in a prompt, and a name that identifies them."""

    specs: list[ToolSpec] | None  # None: no tools
    name: str

    @staticmethod
    def of(specs: Sequence[ToolSpec] | None) -> Tools:
        if not specs:
            return Tools(specs=None, name="")
        return Tools(specs=copy.deepcopy(list(specs)), name=json.dumps(specs, sort_keys=True))


def key_of(message: Message) -> Key:
    """Return the key that equal messages share. Raises PolicyError for content that is not text."""
    role, text = message["role"], text_of(message.get("content"))
    if role != "assistant":
        return role, text, ""
    calls = message.get("tool_calls")
    if not calls:
        return role, text.strip(), ""
    return role, text.strip(), json.dumps([_call(call) for call in calls], sort_keys=True)


def reasoning_of(message: Message) -> str | None:
    """Return the stripped reasoning of an assistant message.

    None: the client omitted the field, so the recorded reply's reasoning applies. "": the reply without its
    reasoning.
    """
    given = message.get("reasoning_content")
    if given is None:
        given = message.get("reasoning")
    return None if given is None else str(given).strip()


def text_of(content: object) -> str:
    """Return the text of a message's content: a string, a list of text parts, or None."""
    if isinstance(content, str):
        return content
    if content is None:
        return ""
    if not isinstance(content, list):
        raise PolicyError(f"a message's content has type {type(content).__name__}: send text")
    return "".join(_part(part) for part in cast("list[Any]", content))


def plain(message: Message) -> Message:
    """Return the message as templates expect it: text content, arguments as an object, no empty keys."""
    result: Message = {"role": message["role"], "content": text_of(message.get("content"))}
    reasoning = message.get("reasoning_content", message.get("reasoning"))
    if reasoning is not None and message["role"] == "assistant":
        result["reasoning_content"] = str(reasoning)
    if message.get("tool_calls"):
        result["tool_calls"] = [_plain_call(call) for call in message["tool_calls"]]
    for name in ("tool_call_id", "name"):
        if message.get(name):
            result[name] = message[name]
    return result


def read_reply(parsed: ParsedResponse, node: int) -> Reply:
    """Return the reply that a renderer parsed; generated tool call ids are unique in the tree."""
    from renderers.base import ToolCallParseStatus

    calls = enumerate(parsed.tool_calls)
    return Reply(
        content=parsed.content,
        node=node,
        reasoning=parsed.reasoning_content,
        tool_calls=tuple(
            tool_call(call.id or f"call_{node}_{number}", call.name or "", call.arguments)
            for number, call in calls
            if call.status == ToolCallParseStatus.OK
        ),
        malformed=tuple(c.raw for c in parsed.tool_calls if c.status != ToolCallParseStatus.OK),
    )


def enveloped(tools: Sequence[ToolSpec] | None) -> list[Any] | None:
    """Return tools in OpenAI's format, {"type": "function", "function": spec}, which templates expect."""
    if not tools:
        return None
    return [tool if "function" in tool else {"type": "function", "function": tool} for tool in tools]


def call_ids(message: Message) -> list[str]:
    return [call["id"] for call in message.get("tool_calls") or () if call.get("id")]


def frozen(message: Message) -> Message | None:
    """Return a deep copy for comparison by `==`; None for a message with numbers outside strings.

    True == 1 == 1.0, so such a message must be compared by its key.
    """
    try:
        return _copy(message)
    except TypeError:
        return None


def _copy(value: Any) -> Any:
    if value is None or isinstance(value, str):
        return value
    if isinstance(value, dict):
        return {name: _copy(inner) for name, inner in cast("dict[str, Any]", value).items()}
    if isinstance(value, list):
        return [_copy(inner) for inner in cast("list[Any]", value)]
    raise TypeError


def _part(part: object) -> str:
    if isinstance(part, str):
        return part
    if isinstance(part, Mapping):
        text = cast("Mapping[str, Any]", part).get("text")
        if isinstance(text, str):
            return text
        kind = cast("Mapping[str, Any]", part).get("type")
        raise PolicyError(f"a message contains a part of type {kind!r}: send text parts only")
    raise PolicyError(f"a message contains a part of type {type(part).__name__}: send text parts only")


def _call(call: Mapping[str, Any]) -> list[object]:
    return [call["function"]["name"], _arguments(call["function"].get("arguments"))]


def _plain_call(call: Mapping[str, Any]) -> Message:
    function = call["function"]
    arguments = _arguments(function.get("arguments"))
    result: Message = {
        "type": "function",
        "function": {"name": function["name"], "arguments": {} if arguments is None else arguments},
    }
    if call.get("id"):
        result["id"] = call["id"]
    return result


def _arguments(arguments: object) -> object:
    if not isinstance(arguments, str):
        return arguments
    try:
        return json.loads(arguments)
    except ValueError:
        return arguments  # a model may write arguments that are not JSON
