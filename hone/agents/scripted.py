"""Scripted agents: they answer in the bash agent's format and run through its loop.

A scripted agent may look at a task's checks; an agent that asks a policy never does.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from hone.agents.actions import BASH_TOOL
from hone.agents.bash import BashAgent
from hone.agents.contract import AgentRun
from hone.agents.scaffold import SUBMIT, Mode, Scaffold
from hone.policy.reply import Chat, Purpose, Reply, ToolCall, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, TokenTree

Script = Callable[[Task, str], Iterable[str]]  # (task, rollout_id) -> the commands, in order


class ScriptedChat:
    """Answers with one given command after another, and with the submit command when they are used up."""

    def __init__(self, scaffold: Scaffold, commands: Iterable[str]) -> None:
        self.tree = TokenTree()
        self._scaffold = scaffold
        self._commands: Iterator[str] = iter(commands)
        self._called = 0

    @property
    def max_prompt_tokens(self) -> int:
        return sys.maxsize

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return 0

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: Purpose = Purpose.MAIN,
    ) -> Reply:
        command = next(self._commands, f"echo {SUBMIT}")
        if self._scaffold.mode is Mode.TEXT:
            return Reply(content=self._scaffold.reply(command), node=None)
        self._called += 1
        function = {"name": BASH_TOOL["name"], "arguments": json.dumps({"command": command})}
        call: ToolCall = {"id": f"call_{self._called}", "type": "function", "function": function}
        return Reply(content="", node=None, tool_calls=(call,))


class ScriptedAgent:
    """The bash agent with a script in the policy's place; the chat it is given is not asked."""

    def __init__(self, scaffold: Scaffold, script: Script) -> None:
        self._bash = BashAgent(scaffold)
        self._script = script

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat | None, run: AgentRun) -> None:
        commands = self._script(task, run.rollout_id)
        await self._bash.run(task, sandbox, ScriptedChat(self._bash.scaffold, commands), run)


def oracle(task: Task, rollout_id: str) -> list[str]:
    """Applies the gold patch."""
    return [f"git apply <<'END_OF_PATCH'\n{task.checks.gold_patch.rstrip(chr(10))}\nEND_OF_PATCH"]


def noop(task: Task, rollout_id: str) -> list[str]:
    """Submits nothing."""
    return []


def demonstrator(*, accuracy: float, favourite: float, seed: int) -> Script:
    """Reads the faulty module, then runs a fix that is right with probability `accuracy`.

    See `choose_fix`, whose ValueError it raises.
    """

    def script(task: Task, rollout_id: str) -> list[str]:
        fix = choose_fix(task, rollout_id, accuracy=accuracy, favourite=favourite, seed=seed)
        return [f"cat -n {_faulty_module(task)}", fix["command"]]

    return script


def choose_fix(
    task: Task, rollout_id: str, *, accuracy: float, favourite: float, seed: int
) -> dict[str, Any]:
    """One of `task.metadata["fixes"]` (see `hone.tasks.curriculum.build`), right with probability `accuracy`.

    A wrong one is the first wrong one listed with probability `favourite`, else one of the others. The same
    seed, task and rollout give the same choice. Raises ValueError for a task without fixes.
    """
    fixes = task.metadata.get("fixes") or []
    right = [fix for fix in fixes if fix["right"]]
    wrong = [fix for fix in fixes if not fix["right"]]
    if not right or not wrong:
        raise ValueError(f"task {task.id} lists no right or no wrong fix for a demonstrator to choose from")
    draw = random.Random(f"{seed}:{task.id}:{rollout_id}")
    if draw.random() < accuracy:
        return draw.choice(right)
    if len(wrong) == 1 or draw.random() < favourite:
        return wrong[0]
    return draw.choice(wrong[1:])


def _faulty_module(task: Task) -> str:
    """The first file that the gold patch touches."""
    for line in task.checks.gold_patch.split("\n"):
        if line.startswith("+++ b/"):
            return line.removeprefix("+++ b/")
    raise ValueError(f"task {task.id} has no gold patch that changes a file")
