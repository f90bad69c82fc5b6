"""The debugger agent: one tool call in each reply, its result as the next message.

    reply -> find_call -> checked arguments -> tool -> observation

What the tools observe comes from a sandbox and may be forged there by the code under test; nothing but the
agent's own messages is made of it. The work is graded from the final state of the repository, elsewhere.
"""

from __future__ import annotations

import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from hone.agents.contract import AgentRun
from hone.agents.debugger.board import Switchboard, open_switchboard
from hone.agents.debugger.calls import ToolUse, Unreadable, find_call
from hone.agents.debugger.console import MOUNT, open_console
from hone.agents.debugger.prompts import opening
from hone.agents.debugger.specs import BadArguments, checked, specs
from hone.agents.debugger.tools import Tools
from hone.agents.settings import AgentSettings
from hone.outcomes import Outcome
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox, SandboxSpec
from hone.types import Message, Task, Turn

FORMAT_ERRORS_MAX = 3  # in a row
ONE_CALL = "Only one tool is called in each reply: this call was not made."


TURNS, COMMAND_S = 80, 30.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """0: no limit."""

    turns: int = TURNS
    tokens: int = 0  # sampled
    seconds: float = 0.0
    command_timeout_s: float = COMMAND_S  # of one pdb command, and of the tests


class DebuggerAgent:
    """Works only while it is open; see `hone.agents.contract.Agent`.

    Args:
        pdb: false leaves the debugger out of the tools and of the prompt.
        native: calls in the model's own format, by its renderer; else as text, told of in the prompt.
    """

    def __init__(self, *, pdb: bool = True, native: bool = True, limits: Limits | None = None) -> None:
        self.tools = specs(pdb=pdb)
        self.limits = limits or Limits()
        self._pdb, self._native = pdb, native
        self._board: Switchboard | None = None

    @classmethod
    def of(cls, settings: AgentSettings) -> DebuggerAgent:
        limits = Limits(
            turns=TURNS if settings.turn_limit is None else settings.turn_limit,
            tokens=settings.token_limit,
            seconds=settings.time_limit_s or 0.0,
            command_timeout_s=settings.command_timeout_s or COMMAND_S,
        )
        return cls(pdb=settings.pdb, native=settings.tool_calls == "native", limits=limits)

    @asynccontextmanager
    async def open(self, spec: SandboxSpec) -> AsyncGenerator[SandboxSpec]:
        """Serve sandboxes; yields `spec` with what each of them needs."""
        async with open_switchboard() as self._board:
            yield replace(spec, tunnel=self._board.path, mounts=(*spec.mounts, MOUNT))
        self._board = None

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxError, EngineError and ContextOverflow; `run` holds the turns until then."""
        if self._board is None:
            raise RuntimeError("the debugger agent is not open")
        run.tools = self.tools if self._native else ()
        workdir = task.environment.workdir
        async with open_console(sandbox, self._board) as console:
            tools = Tools(console, workdir, self.limits.command_timeout_s)
            tree = await tools.tree()
            run.messages.extend(opening(task.problem, tree, self.tools, pdb=self._pdb, native=self._native))
            run.ending = await self._converse(tools, chat, run)

    async def _converse(self, tools: Tools, chat: Chat, run: AgentRun) -> Outcome | None:
        """The limit that ended it, or None after a submission."""
        started = time.monotonic()
        format_errors = tokens = 0
        while (limit := self._limit(len(run.turns), tokens, format_errors, started)) is None:
            turn_started = time.monotonic()
            reply = await chat.reply(list(run.messages), tools=self.tools if self._native else None)
            tokens += reply.sampled_tokens
            run.messages.append(reply.to_message())
            action, (observation, exit_code) = None, ("", None)
            try:
                call = find_call(reply, native=self._native)
                arguments = self._arguments(call)
            except (Unreadable, BadArguments) as error:
                format_errors += 1
                observation = str(error)
            else:
                format_errors = 0
                action = json.dumps({"name": call.name, "arguments": call.arguments}, ensure_ascii=False)
                if call.name == "submit":
                    run.submitted = True
                    await run.record(_turn(run, reply, action, 0, "", turn_started))
                    return None
                observation, exit_code = await tools.use(call.name, arguments)
            run.messages.extend(self._results(reply, observation))
            await run.record(_turn(run, reply, action, exit_code, observation, turn_started))
        return limit

    def _arguments(self, call: ToolUse) -> dict[str, object]:
        spec = next((tool for tool in self.tools if tool["name"] == call.name), None)
        if spec is None:
            names = ", ".join(tool["name"] for tool in self.tools)
            raise Unreadable(f"Unregistered tool: {call.name}. The tools are: {names}.")
        try:
            return checked(spec, call.arguments)
        except BadArguments as error:
            raise BadArguments(f"Invalid arguments for tool {call.name}: {error}.") from None

    def _results(self, reply: Reply, observation: str) -> list[Message]:
        """What answers a reply: a result for each of its calls; a user's message where it has none."""
        if not self._native or not reply.tool_calls:
            return [{"role": "user", "content": observation}]
        *others, last = [call["id"] for call in reply.tool_calls]
        results: list[Message] = [
            {"role": "tool", "tool_call_id": other, "content": ONE_CALL} for other in others
        ]
        return [*results, {"role": "tool", "tool_call_id": last, "content": observation}]

    def _limit(self, turns: int, tokens: int, format_errors: int, started: float) -> Outcome | None:
        limits = self.limits
        if format_errors >= FORMAT_ERRORS_MAX:
            return Outcome.FORMAT_LIMIT
        if 0 < limits.turns <= turns:
            return Outcome.TURN_LIMIT
        if 0 < limits.tokens <= tokens:
            return Outcome.TOKEN_LIMIT
        if 0 < limits.seconds <= time.monotonic() - started:
            return Outcome.TIME_LIMIT
        return None


def _turn(
    run: AgentRun, reply: Reply, action: str | None, exit_code: int | None, observation: str, started: float
) -> Turn:
    return Turn(
        index=len(run.turns),
        node=reply.node,
        reply=reply.content,
        action=action,
        exit_code=exit_code,
        observation=observation,
        seconds=time.monotonic() - started,
    )
