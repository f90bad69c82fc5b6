"""Someone who knows the bug, at work with the debugger's tools: what a model is taught to imitate."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence

from hone.agents.contract import AgentRun
from hone.agents.debugger.agent import DebuggerAgent
from hone.agents.scripted import choose_fix
from hone.policy.reply import Chat, Purpose, Reply, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, TokenTree


class DebuggerDemonstrator(DebuggerAgent):
    """Views the faulty file, rewrites one line and submits; the fix is that of `choose_fix`."""

    def __init__(self, *, pdb: bool, accuracy: float, favourite: float, seed: int) -> None:
        super().__init__(pdb=pdb)
        self._accuracy, self._favourite, self._seed = accuracy, favourite, seed

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """The chat it is given is not asked."""
        fix = choose_fix(
            task, run.rollout_id, accuracy=self._accuracy, favourite=self._favourite, seed=self._seed
        )
        rewrite = {"path": fix["path"], "start": fix["line"], "end": fix["line"], "new_code": fix["code"]}
        calls = [("view", {"path": fix["path"]}), ("rewrite", rewrite), ("submit", {})]
        await super().run(task, sandbox, _ScriptedCalls(calls), run)


class _ScriptedCalls:
    """Answers with one given tool call after another."""

    def __init__(self, calls: Iterable[tuple[str, dict[str, object]]]) -> None:
        self.tree = TokenTree()
        self._calls = enumerate(calls)

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
        number, (name, arguments) = next(self._calls)
        function = {"name": name, "arguments": json.dumps(arguments)}
        call = {"id": f"call_{number}", "type": "function", "function": function}
        return Reply(content="", node=None, tool_calls=(call,))
