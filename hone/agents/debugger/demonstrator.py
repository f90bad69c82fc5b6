"""The debugger agent with a script in the policy's place: examples for supervised fine-tuning."""

from __future__ import annotations

from hone.agents.contract import AgentRun
from hone.agents.debugger.agent import DebuggerAgent
from hone.agents.scripted import ScriptedChat, call_reply, choose_fix
from hone.policy.reply import Chat
from hone.sandbox.contract import Sandbox
from hone.types import Task


class DebuggerDemonstrator(DebuggerAgent):
    """Views the faulty file, rewrites one line and submits; the fix is that of `choose_fix`."""

    def __init__(self, *, pdb: bool, accuracy: float, favourite: float, seed: int) -> None:
        super().__init__(pdb=pdb)
        self._accuracy, self._favourite, self._seed = accuracy, favourite, seed

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Ignores `chat`."""
        fix = choose_fix(
            task, run.rollout_id, accuracy=self._accuracy, favourite=self._favourite, seed=self._seed
        )
        rewrite = {"path": fix["path"], "start": fix["line"], "end": fix["line"], "new_code": fix["code"]}
        calls = [("view", {"path": fix["path"]}), ("rewrite", rewrite), ("submit", {})]
        replies = (call_reply(number, tool, arguments) for number, (tool, arguments) in enumerate(calls))
        await super().run(task, sandbox, ScriptedChat(replies), run)
