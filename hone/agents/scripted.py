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
from hone.tasks.harbor import is_harbor, solution_commands
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
    """Apply the gold patch; of a Harbor task, run its solution, that of each step."""
    if is_harbor(task):
        return solution_commands(task.checks.folder)
    return [f"git apply <<'END_OF_PATCH'\n{task.checks.gold_patch.rstrip(chr(10))}\nEND_OF_PATCH"]


def noop(task: Task, rollout_id: str) -> list[str]:
    """Submit without a change."""
    return []


def demonstrator(settings: DemonstratorSettings) -> Script:
    """Return a script that makes the edits that `choose_fixes` draws, and submits with the last one.

    It searches for what the task says to search for, and reads a module before its edits.
    """

    def script(task: Task, rollout_id: str) -> list[str]:
        commands = [f"grep -nw {name} *.py" for name in task.metadata.get("search", ())]
        for path, fixes in _by_path(choose_fixes(task, rollout_id, settings)):
            commands += [f"cat -n {path}", *(fix["command"] for fix in fixes)]
        return [*commands[:-1], f"{commands[-1]} && echo {SUBMIT}"]

    return script


def choose_fixes(task: Task, rollout_id: str, settings: DemonstratorSettings) -> list[dict[str, Any]]:
    """Return one of the candidates for each edit, from `task.metadata["fixes"]`, in their order.

    All are right with probability `settings.accuracy`; each is drawn by itself. A wrong one is the first
    wrong one listed with probability `settings.favourite`, else one of the others. The same seed, task and
    rollout give the same choice.

    Raises:
        ValueError: the task does not list both a right and a wrong candidate for each edit.
    """
    edits = _edits(task)
    accuracy = settings.accuracy ** (1 / len(edits))
    draw = random.Random(f"{settings.seed}:{task.id}:{rollout_id}")
    return [_choose(candidates, accuracy, settings.favourite, draw) for candidates in edits]


def _edits(task: Task) -> list[list[dict[str, Any]]]:
    """Return the candidates for each edit, of which only the first is right.

    They are listed one edit after the other (see `hone.tasks.curriculum.build`).
    """
    edits: list[list[dict[str, Any]]] = []
    for fix in task.metadata.get("fixes") or []:
        edits += [[]] if fix["right"] or not edits else []
        edits[-1].append(fix)
    if not edits or not edits[0][0]["right"] or min(map(len, edits)) < 2:
        raise ValueError(
            f"task {task.id} lists no right or no wrong fix for a demonstrator to choose from: for each "
            "edit, `metadata.fixes` lists the right one and then wrong ones"
        )
    return edits


def _choose(
    candidates: Sequence[dict[str, Any]], accuracy: float, favourite: float, draw: random.Random
) -> dict[str, Any]:
    right, *wrong = candidates
    if draw.random() < accuracy:
        return right
    if len(wrong) == 1 or draw.random() < favourite:
        return wrong[0]
    return draw.choice(wrong[1:])


def _by_path(fixes: Iterable[dict[str, Any]]) -> Iterator[tuple[str, Iterator[dict[str, Any]]]]:
    """Yield each file and the fixes of it that follow each other."""
    return itertools.groupby(fixes, key=lambda fix: fix["path"])


class DebuggerDemonstrator(DebuggerAgent):
    """Searches, views and edits as `demonstrator`: rewrites a line for each of `choose_fixes`; submits."""

    def __init__(self, settings: DemonstratorSettings) -> None:
        super().__init__(DebuggerAgentSettings(pdb=settings.pdb))
        self._settings = settings

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Ignores `chat`."""
        calls: list[tuple[str, dict[str, Any]]] = [
            ("grep", {"pattern": rf"\b{name}\b"}) for name in task.metadata.get("search", ())
        ]
        for path, fixes in _by_path(choose_fixes(task, run.rollout_id, self._settings)):
            calls += [("view", {"path": path}), *(("rewrite", _rewriting(fix)) for fix in fixes)]
        calls.append(("submit", {}))
        replies = (call_reply(number, tool, arguments) for number, (tool, arguments) in enumerate(calls))
        await super().run(task, sandbox, ScriptedChat(replies), run)


def _rewriting(fix: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of the tool `rewrite` that make a fix."""
    return {"path": fix["path"], "start": fix["line"], "end": fix["line"], "new_code": fix["code"]}
