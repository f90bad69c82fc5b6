"""Parse the tool call of a reply, and check its arguments.

A call is in the model's own format, which its renderer parses, or in one of two text formats. The setting
`agent.tool_calls` chooses; the other one is never tried.
"""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hone.policy.reply import Reply, ToolSpec

NO_CALL = "Empty tool name in action: "
_FUNCTION = re.compile(r"<function=([^>\s]*)>(.*?)</function>", re.DOTALL)
_PARAMETER = re.compile(r"<parameter=([^>\s]+)>(.*?)</parameter>", re.DOTALL)
_TYPES: dict[str, TypeAdapter[Any]] = {
    "string": TypeAdapter(str), "integer": TypeAdapter(int), "boolean": TypeAdapter(bool),
}  # fmt: skip
_KINDS = {"string": "text", "integer": "a number", "boolean": "true or false"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    name: str
    arguments: Any  # an object, if the call is valid


class CallError(ValueError):
    """A reply holds no valid tool call; the message is the observation."""


def parse_call(reply: Reply, *, native: bool) -> ToolUse:
    """Return the last call of a reply. Raises CallError."""
    return _native_call(reply) if native else _text_call(reply)


def _native_call(reply: Reply) -> ToolUse:
    if reply.tool_calls:
        function = reply.tool_calls[-1]["function"]
        try:
            arguments: Any = json.loads(function["arguments"] or "{}")
        except (ValueError, RecursionError):
            arguments = function["arguments"]
        return ToolUse(name=str(function["name"]), arguments=arguments)
    if reply.malformed:
        raise CallError(f"{NO_CALL}the tool call cannot be read: {reply.malformed[-1][:200]}")
    raise _no_call(reply)


def _text_call(reply: Reply) -> ToolUse:
    text = reply.content
    end = text.rfind("</tool_call>")
    start = text.rfind("<tool_call>", 0, max(end, 0))
    inside = text[start + len("<tool_call>") : end] if end >= 0 and start >= 0 else None
    functions = _FUNCTION.findall(text if inside is None else inside)
    if functions:
        return _function_call(*functions[-1])
    if inside is None:
        raise _no_call(reply)
    return _json_call(inside)


def _json_call(text: str) -> ToolUse:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        raise CallError(f"{NO_CALL}the tool call is no JSON: {text.strip()[:200]}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        raise CallError(f"{NO_CALL}the tool call has no name: {text.strip()[:200]}")
    return ToolUse(name=call["name"], arguments=call.get("arguments") or {})


def _function_call(name: str, body: str) -> ToolUse:
    if not name:
        raise CallError(f"{NO_CALL}the tool call has no name")
    # Only the line breaks next to the tags are dropped: indentation is part of the value.
    parameters = {key: value.removeprefix("\n").removesuffix("\n") for key, value in _PARAMETER.findall(body)}
    return ToolUse(name=name, arguments=parameters)


def _no_call(reply: Reply) -> CallError:
    if reply.truncated:
        return CallError(
            f"{NO_CALL}the reply was cut off before it held a whole tool call. Think less at a time."
        )
    return CallError(f"{NO_CALL}the reply holds no tool call. Call exactly one tool in each reply.")


def check_arguments(spec: ToolSpec, arguments: Any) -> dict[str, Any]:
    """Return a value for each argument of the tool; None for one that is not given. Raises CallError.

    Numbers and booleans may be given as text, as in formats without types.
    """
    if not isinstance(arguments, dict):
        raise CallError(f"they must be an object, not {type(arguments).__name__}")
    properties: dict[str, Any] = spec["parameters"]["properties"]
    for name in arguments:
        if name not in properties:
            takes = ", ".join(properties) or "none"
            raise CallError(f"there is no argument {name!r} (it takes: {takes})")
    values = {name: _typed(name, schema, arguments.get(name)) for name, schema in properties.items()}
    for name in spec["parameters"].get("required", ()):
        if values[name] is None:
            raise CallError(f"{name!r} is missing")
    return values


def _typed(name: str, schema: dict[str, Any], value: Any) -> Any:
    kind, choices = schema["type"], schema.get("enum")
    if isinstance(value, str) and (choices or kind != "string"):
        value = None if value.strip().lower() in ("", "none", "null") else value.strip().lower()
    if value is None:
        return None
    if kind == "boolean" or not isinstance(value, bool):  # else pydantic would take True as 1
        with contextlib.suppress(ValidationError):
            typed = _TYPES[kind].validate_python(value)
            if not choices or typed in choices:
                return typed
    wanted = " or ".join(map(repr, choices)) if choices else _KINDS[kind]
    raise CallError(f"{name!r} must be {wanted}, got {value!r}")
