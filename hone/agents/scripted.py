"""Scripted agents: given replies in the policy's place, run through a real agent's loop.

Only scripted agents may look at a task's checks.
"""

from __future__ import annotations

import itertools
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hone.agents.bash import BASH_TOOL, BashAgent
from hone.agents.contract import AgentRun
from hone.agents.debugger.agent import DebuggerAgent
from hone.agents.scaffold import SUBMIT, Mode, Scaffold
from hone.agents.settings import DebuggerAgentSettings, DemonstratorSettings
from hone.policy.reply import CallKind, Chat, Reply, ToolSpec, tool_call
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, TokenTree

Script = Callable[[Task, str], Iterable[str]]  # (task, rollout_id) -> the commands, in order


class ScriptedChat:
    """A chat that returns given replies in order, without an engine."""

    def __init__(self, replies: Iterable[Reply]) -> None:
        self.tree = TokenTree()
        self.max_prompt_tokens = sys.maxsize
        self._replies = iter(replies)

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return 0

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        return next(self._replies)


class ScriptedAgent:
    """The bash agent with a script in the policy's place."""

    def __init__(self, scaffold: Scaffold, script: Script) -> None:
        self._bash = BashAgent(scaffold)
        self._script = script

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat | None, run: AgentRun) -> None:
        """Ignores `chat`."""
        replies = command_replies(self._bash.scaffold, self._script(task, run.rollout_id))
        await self._bash.run(task, sandbox, ScriptedChat(replies), run)


def command_replies(scaffold: Scaffold, commands: Iterable[str]) -> Iterator[Reply]:
    """Yield one reply for each command, in the form that `scaffold` parses; after them, submissions."""
    for number, command in enumerate(itertools.chain(commands, itertools.repeat(f"echo {SUBMIT}"))):
        if scaffold.mode is Mode.TEXT:
            yield Reply(content=scaffold.reply(command), node=None)
        else:
            yield call_reply(number, BASH_TOOL["name"], {"command": command})


def call_reply(number: int, tool: str, arguments: dict[str, Any]) -> Reply:
    """Return a reply with one tool call, whose id is made from `number`."""
    return Reply(content="", node=None, tool_calls=(tool_call(f"call_{number}", tool, arguments),))


def oracle(task: Task, rollout_id: str) -> list[str]:
    """Apply the gold patch."""
    return [f"git apply <<'END_OF_PATCH'\n{task.checks.gold_patch.rstrip(chr(10))}\nEND_OF_PATCH"]


def noop(task: Task, rollout_id: str) -> list[str]:
    """Submit without a change."""
    return []


def demonstrator(settings: DemonstratorSettings) -> Script:
    """Return a script that reads the faulty module, then runs the fix that `choose_fix` draws and submits."""

    def script(task: Task, rollout_id: str) -> list[str]:
        fix = choose_fix(task, rollout_id, settings)
        return [f"cat -n {_faulty_module(task)}", f"{fix['command']} && echo {SUBMIT}"]

    return script


def choose_fix(task: Task, rollout_id: str, settings: DemonstratorSettings) -> dict[str, Any]:
    """Return one of `task.metadata["fixes"]` (see `hone.tasks.curriculum.build`).

    It is right with probability `settings.accuracy`. A wrong one is the first wrong one listed with
    probability `settings.favourite`, else one of the others. The same seed, task and rollout give the same
    choice.

    Raises:
        ValueError: the task does not list both right and wrong fixes.
    """
    fixes = task.metadata.get("fixes") or []
    right = [fix for fix in fixes if fix["right"]]
    wrong = [fix for fix in fixes if not fix["right"]]
    if not right or not wrong:
        raise ValueError(f"task {task.id} lists no right or no wrong fix for a demonstrator to choose from")
    draw = random.Random(f"{settings.seed}:{task.id}:{rollout_id}")
    if draw.random() < settings.accuracy:
        return draw.choice(right)
    if len(wrong) == 1 or draw.random() < settings.favourite:
        return wrong[0]
    return draw.choice(wrong[1:])


def _faulty_module(task: Task) -> str:
    """Return the first file that the gold patch changes."""
    for line in task.checks.gold_patch.split("\n"):
        if line.startswith("+++ b/"):
            return line.removeprefix("+++ b/")
    raise ValueError(f"task {task.id} has no gold patch that changes a file")


class DebuggerDemonstrator(DebuggerAgent):
    """Views the faulty file, rewrites one line and submits; the fix is that of `choose_fix`."""

    def __init__(self, settings: DemonstratorSettings) -> None:
        super().__init__(DebuggerAgentSettings(pdb=settings.pdb))
        self._settings = settings

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Ignores `chat`."""
        fix = choose_fix(task, run.rollout_id, self._settings)
        rewrite = {"path": fix["path"], "start": fix["line"], "end": fix["line"], "new_code": fix["code"]}
        calls = [("view", {"path": fix["path"]}), ("rewrite", rewrite), ("submit", {})]
        replies = (call_reply(number, tool, arguments) for number, (tool, arguments) in enumerate(calls))
        await super().run(task, sandbox, ScriptedChat(replies), run)
