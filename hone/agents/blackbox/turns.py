"""Record the exchanges of a gateway session as the turns of an agent."""

from __future__ import annotations

import json
from collections.abc import Iterable

from hone.agents.contract import AgentRun
from hone.policy.gateway.record import Exchange
from hone.policy.messages import key_of
from hone.policy.reply import ToolCall
from hone.types import Message, Turn
from hone.utils import clock


class Recorder:
    """Records each exchange of the main conversation as a turn, with its messages.

    A conversation that the client rewrote (compacted) is recorded again from its new beginning.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._conversation: list[Message] = []  # the last request and its reply

    async def record(self, exchange: Exchange) -> None:
        """Await this while the sandbox is as the exchange left it. Raises what observers raise."""
        request = exchange.messages
        continues = request[: len(self._conversation)] == self._conversation
        reply = exchange.node.message
        self._run.messages.extend([*request[len(self._conversation) if continues else 0 :], reply])
        self._conversation = [*request, reply]
        turn = Turn(
            index=len(self._run.turns),
            node=exchange.reply.node,
            reply=exchange.reply.content,
            action=action_text(exchange.reply.tool_calls),
            exit_code=None,
            observation=observation(exchange),
            seconds=clock.monotonic() - exchange.started,
        )
        await self._run.record(turn)


def action_text(calls: Iterable[ToolCall]) -> str | None:
    """Return tool calls for display: `name: command` for one that runs a command, else `name {arguments}`."""
    lines = [_call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return "\n".join(lines) or None


def _call_text(name: str, arguments: str) -> str:
    try:
        values = json.loads(arguments)
    except (ValueError, RecursionError):
        values = None
    if isinstance(values, dict) and isinstance(values.get("command"), str):
        return f"{name}: {values['command']}"
    return f"{name} {arguments}"


def observation(exchange: Exchange) -> str:
    """Return the answers to this reply in the next request; "" if it is missing or leaves out the reply."""
    answers: list[str] = []
    for message in reversed(exchange.followed_by):
        if message["role"] == "assistant":
            same = key_of(message) == key_of(exchange.node.message)
            return "\n".join(reversed(answers)) if same else ""
        answers.append(str(message.get("content") or ""))
    return ""
