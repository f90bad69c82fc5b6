"""Parse the commands out of a reply, and run them; errors are worded as mini-swe-agent words them."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.agents.scaffold import Mode, Scaffold
from hone.policy.reply import Reply, ToolCall, ToolSpec
from hone.sandbox.contract import ExecResult, Sandbox

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    output: str  # standard output and standard error, interleaved
    exit_code: int  # -1: the command timed out or could not be run
    timed_out: bool = False
    exception: str = ""  # why the command has no exit code of its own

    @property
    def variables(self) -> dict[str, Any]:
        """Return the template variable `output`."""
        info = f"An error occurred while executing the command: {self.exception}" if self.exception else ""
        return {"output": self.output, "returncode": self.exit_code, "exception_info": info}

    def submits(self, sentinels: Sequence[str]) -> bool:
        """Return whether the command succeeded and the first line of its output is a sentinel."""
        if self.exit_code != 0:
            return False
        lines = self.output.lstrip().splitlines()
        return bool(lines) and lines[0].strip() in sentinels


async def run_command(
    sandbox: Sandbox,
    command: Any,
    *,
    interpreter: Sequence[str],
    timeout_s: float,
    cwd: str | None,
    env: Mapping[str, str],
) -> CommandResult:
    """Run `command`, which may be any JSON value that a policy wrote.

    The result is in mini-swe-agent's terms. Raises SandboxLost.
    """
    problem = _argument_error(command)
    if problem:
        return CommandResult(output="", exit_code=-1, exception=problem)
    result = await sandbox.exec(
        [*interpreter, command], timeout_s=timeout_s, cwd=cwd, env=env, merge_stderr=True
    )
    output = output_text(result)
    if result.timed_out:
        exception = str(subprocess.TimeoutExpired(command, timeout_s))
        return CommandResult(output=output, exit_code=-1, timed_out=True, exception=exception)
    return CommandResult(output=output, exit_code=result.exit_code)


def output_text(result: ExecResult) -> str:
    """Return standard output as text, with a note where the sandbox cut it (half head, half tail).

    Line ends are those of Python's text files: `\\r\\n` and `\\r` become `\\n`.
    """
    omitted = result.stdout_bytes - len(result.stdout)
    if omitted <= 0:
        text = result.text
    else:
        middle = len(result.stdout) // 2
        head = result.stdout[:middle].decode("utf-8", "replace")
        tail = result.stdout[middle:].decode("utf-8", "replace")
        text = f"{head}\n[... {omitted} bytes omitted ...]\n{tail}"
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _argument_error(command: Any) -> str:
    """Return why no process can be started with this argument, as Python reports it; "" when one can."""
    if not isinstance(command, str):
        return f"expected str, bytes or os.PathLike object, not {type(command).__name__}"
    try:
        command.encode()
    except UnicodeEncodeError as error:  # half of a surrogate pair, which JSON can encode
        return str(error)
    return "embedded null byte" if "\0" in command else ""
