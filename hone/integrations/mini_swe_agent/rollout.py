"""One rollout of the package, in the package's thread: its requests to Hone and its record."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from minisweagent.exceptions import LimitsExceeded

from hone.agents.actions import BASH_TOOL, Action, CommandResult, run_command
from hone.agents.bash import bash_step
from hone.agents.contract import AgentRun
from hone.agents.scaffold import Mode, Scaffold
from hone.integrations.bridge import Ask
from hone.policy.reply import Chat, Reply
from hone.sandbox.contract import Sandbox
from hone.types import Message

TOKEN_LIMIT = "TokenLimitExceeded"  # noqa: S105 - not one of the package's own
SENT = ("role", "content", "tool_calls", "tool_call_id", "reasoning_content")  # keys of a message


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
        self._reply: Reply | None = None  # of the current turn
        self._actions: list[Action] = []
        self._results: list[CommandResult] = []
        self._started = 0.0

    def query(self, messages: Sequence[dict[str, Any]]) -> Reply:
        """Begin a turn; return the policy's reply. Raises LimitsExceeded when no tokens are left."""
        self.catch_up(messages)
        if 0 < self._token_limit <= self._tokens:
            extra = {"exit_status": TOKEN_LIMIT, "submission": ""}
            raise LimitsExceeded({"role": "exit", "content": TOKEN_LIMIT, "extra": extra})
        self._started, self._actions, self._results = time.monotonic(), [], []
        asked = list(self.run.messages)
        self._reply = self._ask(lambda: self._chat.reply(asked, tools=self._tools))
        self._tokens += self._reply.sampled_tokens
        return self._reply

    def execute(self, command: Any, *, timeout_s: float, cwd: str, env: dict[str, str]) -> CommandResult:
        result = self._ask(
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
        self._results.append(result)
        return result

    def end_turn(self, answers: Sequence[dict[str, Any]], *, readable: bool = True) -> None:
        """Record the current turn, while the sandbox is as it left it.

        Args:
            answers: the messages that the package is about to append.
            readable: False for a reply that it cannot parse, which it does not append.
        """
        assert self._reply is not None, "a turn begins with a reply"
        self._take([self._reply.to_message(), *answers] if readable else answers)
        step = bash_step(self._actions, self._results, answers)
        turn = step.turn(self.run, self._reply, time.monotonic() - self._started)
        self._ask(lambda: self.run.record(turn))

    def catch_up(self, messages: Sequence[dict[str, Any]]) -> None:
        """Record the messages of the package that are not yet in the record."""
        self._take(messages[self._seen :])

    def _take(self, messages: Sequence[dict[str, Any]]) -> None:
        fresh: list[Message] = [
            {key: message[key] for key in SENT if key in message}
            for message in messages
            if message["role"] != "exit"
        ]
        self._seen += len(messages)
        self.run.messages.extend(fresh)
