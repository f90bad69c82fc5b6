"""What a session of the gateway heard, told as the turns of an agent."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

from hone.agents.contract import AgentRun
from hone.policy.gateway.record import Exchange
from hone.policy.messages import key_of
from hone.policy.reply import ToolCall
from hone.types import Message, Turn


class Recorder:
    """Records each exchange of the main line as a turn, and the messages of that line.

    A line that the client rewrote (it compacted its history) is recorded from its new beginning.
    """

    def __init__(self, run: AgentRun) -> None:
        self._run = run
        self._line: list[Message] = []  # the last request and its reply

    async def record(self, exchange: Exchange) -> None:
        """To be awaited while the sandbox stands as this exchange left it. Raises what observers raise."""
        asked = exchange.messages
        begins = self._line if asked[: len(self._line)] == self._line else []
        reply = exchange.place.message
        self._run.messages.extend([*asked[len(begins) :], reply])
        self._line = [*asked, reply]
        turn = Turn(
            index=len(self._run.turns),
            node=exchange.reply.node,
            reply=exchange.reply.content,
            action=action_text(exchange.reply.tool_calls),
            exit_code=None,
            observation=observation(exchange),
            seconds=time.monotonic() - exchange.started,
        )
        await self._run.record(turn)


def action_text(calls: Iterable[ToolCall]) -> str | None:
    """Tool calls for people: `name: command` for one that runs a command, else `name {arguments}`."""
    lines = [_call_text(call["function"]["name"], call["function"]["arguments"]) for call in calls]
    return "\n".join(lines) or None


def _call_text(name: str, arguments: str) -> str:
    try:
        given = json.loads(arguments)
    except ValueError:
        given = None
    if isinstance(given, dict) and isinstance(given.get("command"), str):
        return f"{name}: {given['command']}"
    return f"{name} {arguments}"


def observation(exchange: Exchange) -> str:
    """What the next request says after this reply; "" where there is none, or it leaves the reply out."""
    said: list[str] = []
    for message in reversed(exchange.followed_by):
        if message["role"] == "assistant":
            same = key_of(message) == key_of(exchange.place.message)
            return "\n".join(reversed(said)) if same else ""
        said.append(str(message.get("content") or ""))
    return ""
