"""Parse the commands out of a reply; errors are worded as mini-swe-agent words them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from hone.agents.scaffold import Mode, Scaffold
from hone.policy.reply import Reply, ToolCall, ToolSpec

BASH_TOOL: ToolSpec = {
    "name": "bash",
    "description": "Execute a bash command",
    "parameters": {
        "type": "object",
        "properties": {"command": {"type": "string", "description": "The bash command to execute"}},
        "required": ["command"],
    },
}
NOT_JSON = (ValueError, RecursionError)  # raised by json.loads for text that a policy may write
NO_CALLS = "No tool calls found in the response. Every response MUST include at least one tool call."


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    command: Any  # text; the arguments of a tool call may hold any JSON value
    call_id: str | None = None  # None: written as text


class FormatError(Exception):
    """The reply cannot be parsed; `variables` are those of the format-error template."""

    def __init__(self, variables: dict[str, Any]) -> None:
        super().__init__(variables["error"])
        self.variables = variables


def parse_actions(scaffold: Scaffold, reply: Reply) -> list[Action]:
    """Return the actions of a reply, at least one. Raises FormatError when any part cannot be parsed."""
    if scaffold.mode is Mode.TOOLS:
        return _parse_calls(reply)
    commands = scaffold.actions(reply.content)
    if len(commands) != 1:
        error = f"Expected exactly 1 action, found {len(commands)}."
        variables = {"error": error, "actions": commands}
        raise FormatError({**variables, "finish_reason": "length" if reply.truncated else "stop"})
    return [Action(command=commands[0])]


def malformed_call_error(raw: str) -> str:
    """Return the error for the raw text of a malformed tool call."""
    try:
        json.loads(raw)
    except NOT_JSON as error:
        return f"Error parsing tool call arguments: {error}."
    return "Error parsing tool call arguments: the call is not complete."


def finish_reason(reply: Reply) -> str:
    """Return the `finish_reason` that an OpenAI-compatible server would send."""
    if reply.truncated:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _parse_calls(reply: Reply) -> list[Action]:
    errors = [malformed_call_error(raw) for raw in reply.malformed]
    errors += [error for call in reply.tool_calls if (error := _call_error(call))]
    has_calls = bool(reply.malformed or reply.tool_calls)
    if not has_calls:
        errors.append(NO_CALLS)
    if errors:
        variables = {"error": errors[0], "actions": [], "has_tool_calls": has_calls}
        raise FormatError({**variables, "finish_reason": finish_reason(reply)})
    return [
        Action(command=json.loads(call["function"]["arguments"])["command"], call_id=call["id"])
        for call in reply.tool_calls
    ]


def _call_error(call: ToolCall) -> str:
    """Return what is wrong with a call; "" for a valid one."""
    name, error, arguments = call["function"]["name"], "", None
    try:
        arguments = json.loads(call["function"]["arguments"])
    except NOT_JSON as parse_error:
        error = f"Error parsing tool call arguments: {parse_error}."
    if name != BASH_TOOL["name"]:
        error += f"Unknown tool '{name}'."
    if not isinstance(arguments, dict) or "command" not in arguments:
        error += "Missing 'command' argument in bash tool call."
    return error
