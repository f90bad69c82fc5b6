"""What a reply asks for: the commands in it, or what is wrong with it, in mini-swe-agent's words."""

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
NOT_JSON = (ValueError, RecursionError)  # what json.loads raises for text that a policy may write
NO_CALLS = "No tool calls found in the response. Every response MUST include at least one tool call."


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    command: Any  # text; a tool call may hold anything JSON can
    call_id: str | None = None  # None: written as text


class FormatError(Exception):
    """A reply that nothing is run for; `variables` are what the format-error template may name."""

    def __init__(self, variables: dict[str, Any]) -> None:
        super().__init__(variables["error"])
        self.variables = variables


def read_actions(scaffold: Scaffold, reply: Reply) -> list[Action]:
    """At least one action. Raises FormatError when any part of the reply cannot be read."""
    if scaffold.mode is Mode.TOOLS:
        return _called(reply)
    commands = scaffold.actions(reply.content)
    if len(commands) != 1:
        error = f"Expected exactly 1 action, found {len(commands)}."
        variables = {"error": error, "actions": commands}
        raise FormatError({**variables, "finish_reason": "length" if reply.truncated else "stop"})
    return [Action(command=commands[0])]


def unreadable_call(raw: str) -> str:
    """What is wrong with the text of a tool call that could not be read."""
    try:
        json.loads(raw)
    except NOT_JSON as error:
        return f"Error parsing tool call arguments: {error}."
    return "Error parsing tool call arguments: the call is not complete."


def finish_reason(reply: Reply) -> str:
    """Why the reply ended, as an OpenAI-compatible server would say."""
    if reply.truncated:
        return "length"
    return "tool_calls" if reply.tool_calls else "stop"


def _called(reply: Reply) -> list[Action]:
    wrong = [unreadable_call(raw) for raw in reply.malformed]
    wrong += [problem for call in reply.tool_calls if (problem := _problem(call))]
    if not reply.malformed and not reply.tool_calls:
        wrong.append(NO_CALLS)
    if wrong:
        called = bool(reply.malformed or reply.tool_calls)
        variables = {"error": wrong[0], "actions": [], "has_tool_calls": called}
        raise FormatError({**variables, "finish_reason": finish_reason(reply)})
    return [
        Action(command=json.loads(call["function"]["arguments"])["command"], call_id=call["id"])
        for call in reply.tool_calls
    ]


def _problem(call: ToolCall) -> str:
    """What is wrong with a call; "" when nothing is."""
    name, wrong, arguments = call["function"]["name"], "", None
    try:
        arguments = json.loads(call["function"]["arguments"])
    except NOT_JSON as error:
        wrong = f"Error parsing tool call arguments: {error}."
    if name != BASH_TOOL["name"]:
        wrong += f"Unknown tool '{name}'."
    if not isinstance(arguments, dict) or "command" not in arguments:
        wrong += "Missing 'command' argument in bash tool call."
    return wrong
