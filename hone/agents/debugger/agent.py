"""The debugger agent: one tool call in each reply; its result is the next message.

    reply -> parse_call -> check_arguments -> tool -> observation

Code under test can forge the tools' results, which only its own agent sees. The grader judges the final state
of the repository in another sandbox.
"""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace

from hone.agents.contract import AgentRun, Limits, Step, run_loop
from hone.agents.debugger.calls import CallError, ToolUse, check_arguments, parse_call
from hone.agents.debugger.client import MOUNTS, Listener, open_client, open_listener
from hone.agents.debugger.tools import Tools, tool_specs
from hone.agents.settings import DebuggerAgentSettings
from hone.policy.reply import Chat, Reply, ToolSpec
from hone.sandbox.contract import Sandbox, SandboxSpec
from hone.types import Message, Task

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
