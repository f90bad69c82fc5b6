"""Keep an agent's conversation within the model's context.

The agent keeps its whole history; the policy is asked with the messages that a context policy leaves of it.
Each rewrite is a fork of the token tree, so every reply is trained once, in exactly the context that it saw.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence

from hone.agents.context.head_tail import Turn, head_tail
from hone.agents.contract import Agent, AgentRun
from hone.agents.settings import ContextSettings
from hone.policy.errors import PolicyError
from hone.policy.reply import CallKind, Chat, Reply, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task

SYSTEM: Message = {"role": "system", "content": "S"}
USER: Message = {"role": "user", "content": "U"}


class ManagedAgent:
    """An agent whose conversations a context policy manages; see `hone.agents.contract.Agent`."""

    def __init__(self, agent: Agent, settings: ContextSettings) -> None:
        self.agent = agent
        self._settings = settings

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        await self.agent.run(task, sandbox, ManagedChat(chat, self._settings), run)


class ManagedChat:
    """A chat that sends `chat` the messages that a context policy leaves."""

    def __init__(self, chat: Chat, settings: ContextSettings) -> None:
        self.tree = chat.tree
        self._chat = chat
        self._settings = settings
        self._cutters = {purpose: _Cutter(chat, settings.head_ratio) for purpose in CallKind}

    @property
    def max_prompt_tokens(self) -> int:
        return self._chat.max_prompt_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return self._chat.measure(self._cut(messages, tools, CallKind.MAIN), tools=tools)

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: CallKind = CallKind.MAIN,
    ) -> Reply:
        """Raises what `chat` raises, and ContextOverflow when the messages cannot be cut enough."""
        return await self._chat.reply(self._cut(messages, tools, purpose), tools=tools, purpose=purpose)

    def _cut(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, purpose: CallKind
    ) -> list[Message]:
        if self._settings.policy == "none":
            return list(messages)
        if self._settings.policy == "drop_thinking":
            return drop_thinking(messages)
        return self._cutters[purpose].cut(messages, tools)


def drop_thinking(messages: Sequence[Message]) -> list[Message]:
    """Return the conversation without the reasoning of all replies but the newest.

    A reply whose `reasoning_content` is "" stands for its tokens without their reasoning; one without the key
    would stand for all of them.
    """
    replies = [index for index, message in enumerate(messages) if message["role"] == "assistant"]
    old = set(replies[:-1])
    return [
        {**message, "reasoning_content": ""} if index in old else message
        for index, message in enumerate(messages)
    ]


class _Cutter:
    """Cuts one growing conversation to the prompts that a chat takes."""

    def __init__(self, chat: Chat, head_ratio: float) -> None:
        self._chat = chat
        self._head_ratio = head_ratio
        self._costs = TurnCosts(chat)
        self._was_cut = False
        self._merge: bool | None = None  # whether the template refuses two user messages in a row

    def cut(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> list[Message]:
        """Return what fits. Raises ContextOverflow.

        A conversation that was cut before is not measured whole again: the cost of a turn does not grow.
        """
        budget = self._chat.max_prompt_tokens
        if not self._was_cut and self._chat.measure(messages, tools=tools) <= budget:
            return list(messages)
        if self._merge is None:
            self._merge = _refuses_two_users(self._chat)
        self._costs.use(tools, system=messages[0]["role"] == "system")
        limit = budget
        while True:
            kept = head_tail(
                messages,
                budget=limit,
                counter=self._costs,
                head_ratio=self._head_ratio,
                merge=self._merge,
            )
            excess = self._chat.measure(kept, tools=tools) - budget
            if excess <= 0:
                self._was_cut = kept != list(messages)
                return kept
            limit -= (excess + 3) // 4  # turns cost more together than one by one


class TurnCosts:
    """`hone.agents.context.head_tail.Counter` by a chat's own template and tokenizer.

    Each turn is measured once, in a short conversation: the tokens that it adds to S, U.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._tools: list[ToolSpec] | None = None
        self._prefix: list[Message] = []
        self._prefix_tokens = 0
        self._known: dict[bytes, int] = {}  # digest of a turn -> its tokens

    def use(self, tools: Sequence[ToolSpec] | None, *, system: bool) -> None:
        """Count for conversations with these tools, with or without a system prompt."""
        prefix, offered = [SYSTEM, USER] if system else [USER], list(tools) if tools else None
        if (prefix, offered) != (self._prefix, self._tools):
            self._prefix, self._tools, self._known = prefix, offered, {}
            self._prefix_tokens = self.prompt(prefix)

    def prompt(self, messages: Sequence[Message]) -> int:
        return self._chat.measure(messages, tools=self._tools)

    def turn(self, turn: Turn) -> int:
        key = hashlib.sha256(json.dumps(turn, sort_keys=True).encode()).digest()
        if key not in self._known:
            self._known[key] = max(0, self.prompt([*self._prefix, *turn]) - self._prefix_tokens)
        return self._known[key]


def _refuses_two_users(chat: Chat) -> bool:
    """Return whether the chat template refuses two user messages in a row."""
    try:
        chat.measure([USER, USER])
    except PolicyError:
        return True
    return False
