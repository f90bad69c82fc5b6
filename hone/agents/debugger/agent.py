"""The debugger agent: one tool call in each reply; its result is the next message.

    reply -> parse_call -> check_arguments -> tool -> observation

A call is in the model's own format, which its renderer parses, or in one of two text formats; the setting
`agent.tool_calls` chooses, and the other one is never tried.

Code under test can forge the tools' results, which only its own agent sees. The grader judges the final state
of the repository in another sandbox.
"""

from __future__ import annotations

import contextlib
import functools
import json
import re
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from typing import Any

from pydantic import TypeAdapter, ValidationError

from hone.agents.contract import AgentRun, Limits, Step, run_loop
from hone.agents.debugger.client import MOUNTS, Listener, open_client, open_listener
from hone.agents.debugger.tools import Tools, tool_specs
from hone.agents.settings import DebuggerAgentSettings
from hone.policy.reply import Chat, Reply, ToolSpec
from hone.sandbox.contract import Sandbox, SandboxSpec
from hone.types import Message, Task

NO_CALL = "Empty tool name in action: "
_FUNCTION = re.compile(r"<function=([^>\s]{0,200})>")
_PARAMETER = re.compile(r"<parameter=([^>\s]{1,200})>")
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
    functions = _elements(_FUNCTION, "</function>", text if inside is None else inside)
    if functions:
        return _function_call(*functions[-1])
    if inside is None:
        raise _no_call(reply)
    return _json_call(inside)


def _elements(start: re.Pattern[str], end: str, text: str) -> list[tuple[str, str]]:
    """Return the name and the content of each complete element; the time grows with the length of `text`."""
    found: list[tuple[str, str]] = []
    position = 0
    while (head := start.search(text, position)) and (close := text.find(end, head.end())) >= 0:
        found.append((head[1], text[head.end() : close]))
        position = close + len(end)
    return found


def _json_call(text: str) -> ToolUse:
    try:
        call = json.loads(text)
    except (ValueError, RecursionError):
        raise CallError(f"{NO_CALL}the tool call is not JSON: {text.strip()[:200]}") from None
    if not isinstance(call, dict) or not isinstance(call.get("name"), str) or not call["name"]:
        raise CallError(f"{NO_CALL}the tool call has no name: {text.strip()[:200]}")
    return ToolUse(name=call["name"], arguments=call.get("arguments") or {})


def _function_call(name: str, body: str) -> ToolUse:
    if not name:
        raise CallError(f"{NO_CALL}the tool call has no name")
    # Only the line breaks next to the tags are dropped: indentation is part of the value.
    found = _elements(_PARAMETER, "</parameter>", body)
    parameters = {key: value.removeprefix("\n").removesuffix("\n") for key, value in found}
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


ONE_CALL = "Only one tool is called in each reply: this call was not made."
TURNS, COMMAND_TIMEOUT_S = 80, 30.0
_DEBUG = """\
You are a software engineer who repairs Python code with a debugger. A program in the repository below does \
not behave as it should. Find out why by watching it run, and repair it.

Rules:
- Use the pdb tool: start the program or a test under it, set breakpoints inside of functions, step, and \
print values, before you decide what is wrong. Do not guess from reading alone.
- Call exactly one tool in each reply, and wait for its result.
- Repair the cause with rewrite (or edit), as small as it can be; do not rewrite whole files.
- After every rewrite, call eval to run the tests. When something still fails, go back to the debugger.
- Do not change tests to make them pass: the repair is checked by tests that you cannot see.
- When the repair is done, call submit."""
_REWRITE = """\
You are a software engineer who repairs Python code. A program in the repository below does not behave as it \
should. Find out why by reading the code and the results of its tests, and repair it.

Rules:
- Look at the code (view, grep, listdir) and at what fails (eval) before you decide what is wrong.
- Call exactly one tool in each reply, and wait for its result.
- Repair the cause with rewrite (or edit), as small as it can be; do not rewrite whole files.
- After every rewrite, call eval to run the tests. When something still fails, look again.
- Do not change tests to make them pass: the repair is checked by tests that you cannot see.
- When the repair is done, call submit."""
_TEXT_CALLS = """\
The tools, one JSON description in each line:

{tools}

To call a tool, end your reply with a call like this one:

<tool_call>
{{"name": "view", "arguments": {{"path": "app.py", "start": 1, "end": 40}}}}
</tool_call>"""
_TASK = """\
{problem}

The program doesn't behave as intended. Investigate the repository, figure out the root cause, then rewrite \
the code to fix the issue."""


class DebuggerAgent:
    """Works only while it is open; see `hone.agents.contract.Agent`."""

    def __init__(self, settings: DebuggerAgentSettings) -> None:
        self.tools = tool_specs(pdb=settings.pdb)
        self.limits = Limits(
            turns=TURNS if settings.turn_limit is None else settings.turn_limit,
            tokens=settings.token_limit,
            seconds=settings.time_limit_s or 0.0,
        )
        self.command_timeout_s = settings.command_timeout_s or COMMAND_TIMEOUT_S
        self._pdb, self._native = settings.pdb, settings.tool_calls == "native"
        self._listener: Listener | None = None

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[SandboxSpec]:
        """Listen for the servers in sandboxes; yields `spec` with the tunnel and the mount that they need."""
        async with open_listener() as self._listener:
            yield replace(spec, tunnel=self._listener.path, mounts=(*spec.mounts, *MOUNTS))
        self._listener = None

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxError, EngineError and ContextOverflow; `run` holds the turns until then."""
        if self._listener is None:
            raise RuntimeError("the debugger agent is not open")
        async with open_client(sandbox, self._listener) as client:
            tools = Tools(client, task.environment.workdir, self.command_timeout_s)
            tree = await tools.tree()
            messages = first_messages(task.problem, tree, self.tools, pdb=self._pdb, native=self._native)
            run.messages.extend(messages)
            run.tools = self.tools if self._native else ()
            await run_loop(chat, run, self.limits, functools.partial(self._act, tools, run))

    async def _act(self, tools: Tools, run: AgentRun, reply: Reply) -> Step:
        run.messages.append(reply.to_message())
        try:
            call = parse_call(reply, native=self._native)
            arguments = self._check(call)
        except CallError as error:
            run.messages.extend(self._answers(reply, str(error)))
            return Step(observation=str(error))
        action = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
        if call.name == "submit":
            return Step(action=action, exit_code=0, submitted=True)
        observation, exit_code = await tools.use(call.name, arguments)
        run.messages.extend(self._answers(reply, observation))
        return Step(action=action, exit_code=exit_code, observation=observation)

    def _check(self, call: ToolUse) -> dict[str, object]:
        spec = next((tool for tool in self.tools if tool["name"] == call.name), None)
        if spec is None:
            names = ", ".join(tool["name"] for tool in self.tools)
            raise CallError(f"Unregistered tool: {call.name}. The tools are: {names}.")
        try:
            return check_arguments(spec, call.arguments)
        except CallError as error:
            raise CallError(f"Invalid arguments for tool {call.name}: {error}.") from None

    def _answers(self, reply: Reply, observation: str) -> list[Message]:
        """Return a tool message for each native call, or one user message; the last call is the one made."""
        if not self._native or not reply.tool_calls:
            return [{"role": "user", "content": observation}]
        *others, last = [call["id"] for call in reply.tool_calls]
        answers: list[Message] = [
            {"role": "tool", "tool_call_id": other, "content": ONE_CALL} for other in others
        ]
        return [*answers, {"role": "tool", "tool_call_id": last, "content": observation}]


def first_messages(
    problem: str, tree: str, tools: Sequence[ToolSpec], *, pdb: bool, native: bool
) -> list[Message]:
    """Return the system message, with the repository's tree, and the task."""
    parts = [_DEBUG if pdb else _REWRITE]
    if not native:
        parts.append(_TEXT_CALLS.format(tools="\n".join(json.dumps(tool) for tool in tools)))
    if tree:
        parts.append(f"The repository:\n\n{tree}")
    return [
        {"role": "system", "content": "\n\n".join(parts)},
        {"role": "user", "content": _TASK.format(problem=problem.strip())},
    ]
