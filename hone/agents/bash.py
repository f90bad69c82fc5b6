"""The bash agent: run the commands of each reply; their output is the next message.

A reply holds one fenced block or calls of the tool `bash`, as its prompts ask (`hone.agents.scaffold`). The
agent submits when a command succeeds and its output begins with the submit sentinel; the text of the command
does not matter. Errors are worded as mini-swe-agent words them.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from hone.agents.contract import AgentRun, Limits, Step, run_loop
from hone.agents.scaffold import Mode, Scaffold, render
from hone.policy.reply import Chat, Reply, ToolCall, ToolSpec
from hone.sandbox.contract import ExecResult, Sandbox
from hone.types import Message, Task
from hone.utils.clock import monotonic

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


class BashAgent:
    """Stateless; see `hone.agents.contract.Agent`. Raises ScaffoldError for templates that do not render."""

    def __init__(self, scaffold: Scaffold, *, token_limit: int = 0) -> None:
        """`token_limit` counts sampled tokens; 0: none. The reply that crosses a limit is still acted on."""
        self.scaffold = scaffold
        self._limits = Limits(
            turns=scaffold.step_limit,
            tokens=token_limit,
            seconds=scaffold.wall_time_limit_s,
            format_errors=scaffold.max_consecutive_format_errors,
        )
        check_templates(scaffold)

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxLost, EngineError and ContextOverflow; `run` holds the turns until then."""
        rollout = _Rollout(self.scaffold, task, sandbox, run)
        await run_loop(chat, run, self._limits, rollout.act)


class _Rollout:
    """One conversation: acts on replies in its sandbox."""

    def __init__(self, scaffold: Scaffold, task: Task, sandbox: Sandbox, run: AgentRun) -> None:
        self._scaffold, self._sandbox, self._run = scaffold, sandbox, run
        self._started = monotonic()
        self._variables = {**scaffold.variables(sandbox.spec.workdir), "task": task.problem}
        run.tools = [BASH_TOOL] if scaffold.mode is Mode.TOOLS else ()
        run.messages.extend(first_messages(scaffold, self._variables))

    async def act(self, reply: Reply) -> Step:
        """Run the commands of a reply, or answer one that cannot be parsed."""
        scaffold, messages = self._scaffold, self._run.messages
        try:
            actions = parse_actions(scaffold, reply)
        except FormatError as error:
            answer = format_error_message(scaffold, error, self._variables | self._progress())
            messages.extend([reply.to_message(), answer] if scaffold.generation == 1 else [answer])
            return Step(observation=answer["content"])
        messages.append(reply.to_message())
        results = await self._execute(actions)
        if results[-1].submits(scaffold.submits):
            return bash_step(actions, results, [])
        answers = observations(scaffold, actions, results, self._variables | self._progress())
        messages.extend(answers)
        return bash_step(actions, results, answers)

    async def _execute(self, actions: Sequence[Action]) -> list[CommandResult]:
        """Run commands in order, up to the first that submits."""
        scaffold, results = self._scaffold, list[CommandResult]()
        for action in actions:
            result = await run_command(
                self._sandbox,
                action.command,
                interpreter=scaffold.interpreter,
                timeout_s=self._command_timeout_s(),
                cwd=scaffold.cwd,
                env=scaffold.env,
            )
            results.append(result)
            if result.submits(scaffold.submits):
                break
        return results

    def _command_timeout_s(self) -> float:
        """Bound a command by the rollout's time limit, with one second to spare."""
        if not self._scaffold.wall_time_limit_s:
            return self._scaffold.timeout_s
        left = self._scaffold.wall_time_limit_s - self._run.seconds_since(self._started)
        return min(self._scaffold.timeout_s, max(left, 1.0))

    def _progress(self) -> dict[str, Any]:
        return progress_variables(len(self._run.turns) + 1, self._run.seconds_since(self._started))


def progress_variables(calls: int, elapsed_s: float) -> dict[str, Any]:
    """Return the template variables that change during a rollout; the policy's own replies cost nothing."""
    return {"n_model_calls": calls, "model_cost": 0.0, "elapsed_seconds": int(elapsed_s)}


def first_messages(scaffold: Scaffold, variables: dict[str, Any]) -> list[Message]:
    """Return the system prompt, unless it is empty, and the task."""
    variables = variables | progress_variables(0, 0.0)
    messages: list[Message] = []
    if scaffold.system_template:
        messages.append({"role": "system", "content": render(scaffold.system_template, variables)})
    messages.append({"role": "user", "content": render(scaffold.instance_template, variables)})
    return messages


def format_error_message(scaffold: Scaffold, error: FormatError, variables: dict[str, Any]) -> Message:
    """Return the answer to a reply that cannot be parsed.

    The template of the format's second generation may name the error's variables only.
    """
    offered = variables | error.variables if scaffold.generation == 1 else error.variables
    return {"role": "user", "content": render(scaffold.format_error_template, offered)}


def observations(
    scaffold: Scaffold,
    actions: Sequence[Action],
    results: Sequence[CommandResult],
    variables: dict[str, Any],
) -> list[Message]:
    """Return one message for each command."""
    messages: list[Message] = []
    for action, result in zip(actions, results, strict=True):
        if result.timed_out and scaffold.timeout_template is not None:
            names = {"action": {"action": action.command, "command": action.command}}
            text = render(scaffold.timeout_template, variables | names | {"output": result.output})
        else:
            text = render(scaffold.observation_template, variables | {"output": result.variables})
        message: Message = {"role": "user", "content": text}
        if action.call_id is not None:
            message = {"role": "tool", "content": text, "tool_call_id": action.call_id}
        messages.append(message)
    return messages


def bash_step(
    actions: Sequence[Action], results: Sequence[CommandResult], answers: Sequence[Message]
) -> Step:
    """Return the step of these commands; its exit code is the first that is not 0, else 0.

    A step without answers is a submission if it ran commands; its observation is their output.
    """
    texts = [message["content"] for message in answers] or [result.output for result in results]
    codes = [result.exit_code for result in results]
    return Step(
        action="\n".join(str(action.command) for action in actions[: len(results)]) if results else None,
        exit_code=next((code for code in codes if code != 0), 0) if codes else None,
        observation="\n".join(texts),
        submitted=bool(results) and not answers,
    )


def check_templates(scaffold: Scaffold) -> None:
    """Render every template once, before any rollout. Raises ScaffoldError for one that does not render."""
    variables = {**scaffold.variables("/"), "task": "task"}
    first_messages(scaffold, variables)
    variables |= progress_variables(1, 0.0)
    for timed_out in (False, True):
        result = CommandResult(output="output", exit_code=-1 if timed_out else 0, timed_out=timed_out)
        observations(scaffold, [Action(command="command")], [result], variables)
    for truncated in (False, True):
        try:
            parse_actions(scaffold, Reply(content="", node=None, truncated=truncated))
        except FormatError as error:
            format_error_message(scaffold, error, variables)
