"""What one rollout of the package asks of Hone, and what is recorded of it. Lives in the package's thread."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from minisweagent.exceptions import LimitsExceeded

from hone.agents.actions import BASH_TOOL, Action
from hone.agents.bash import turn_of
from hone.agents.commands import Ran, run_command
from hone.agents.contract import AgentRun
from hone.agents.scaffold import Mode, Scaffold
from hone.integrations.bridge import Ask
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox
from hone.types import Message

TOKEN_LIMIT = "TokenLimitExceeded"  # noqa: S105 - an exit status beside the package's own
SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")  # of a message; not its `extra`


class Rollout:
    """Every method blocks and raises `hone.integrations.bridge.Stopped` when the rollout is over."""

    def __init__(
        self, ask: Ask, sandbox: Sandbox, chat: Chat, run: AgentRun, scaffold: Scaffold, *, token_limit: int
    ) -> None:
        self.run = run
        self.scaffold = scaffold
        self.workdir = sandbox.spec.workdir
        self._ask = ask
        self._sandbox = sandbox
        self._chat = chat
        self._tools = [BASH_TOOL] if scaffold.mode is Mode.TOOLS else None
        self._token_limit = token_limit
        self._tokens = self._seen = 0
        self._reply: Reply | None = None  # of the turn under way
        self._actions: list[Action] = []
        self._ran: list[Ran] = []
        self._started = 0.0

    def query(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """The policy's next reply; it begins a turn. Raises LimitsExceeded when no tokens are left."""
        self.catch_up(messages)
        if 0 < self._token_limit <= self._tokens:
            extra = {"exit_status": TOKEN_LIMIT, "submission": ""}
            raise LimitsExceeded({"role": "exit", "content": TOKEN_LIMIT, "extra": extra})
        self._started, self._actions, self._ran = time.monotonic(), [], []
        asked = list(self.run.messages)
        self._reply = self._ask(lambda: self._chat.reply(asked, tools=self._tools))
        self._tokens += self._reply.sampled_tokens
        return self._reply

    def execute(self, command: Any, *, timeout_s: float, cwd: str, env: dict[str, str]) -> Ran:
        ran = self._ask(
            lambda: run_command(
                self._sandbox,
                command,
                interpreter=self.scaffold.interpreter,
                timeout_s=timeout_s,
                cwd=cwd,
                env=env,
            )
        )
        self._actions.append(Action(command=command))
        self._ran.append(ran)
        return ran

    def end_turn(self, told: Sequence[dict[str, Any]], *, readable: bool = True) -> None:
        """Record the turn under way, while the sandbox stands as it left it.

        The package is about to add `told` to its messages; a reply that it cannot read it never adds.
        """
        assert self._reply is not None, "a turn begins with a reply"
        self._take([self._reply.to_message(), *told] if readable else told)
        turn = turn_of(self.run, self._reply, self._actions, self._ran, told, self._started)
        self._ask(lambda: self.run.record(turn))

    def catch_up(self, messages: Sequence[dict[str, Any]]) -> None:
        """Take over the messages that the package has and the record lacks."""
        self._take(messages[self._seen :])

    def _take(self, messages: Sequence[dict[str, Any]]) -> None:
        fresh: list[Message] = [
            {key: message[key] for key in SENT if key in message}
            for message in messages
            if message["role"] != "exit"
        ]
        self._seen += len(messages)
        self.run.messages.extend(fresh)
