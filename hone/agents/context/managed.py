"""Chats whose conversations are kept within the model's context, for every agent alike.

The agent keeps its whole history; the policy is asked with what the context policy leaves of it. Each rewrite
is a fork of the token tree, so every reply is trained in exactly the context that it saw, and once.
"""

from __future__ import annotations

from collections.abc import Sequence

from hone.agents.context.head_tail import Turn, head_tail
from hone.agents.context.thinking import drop_thinking
from hone.agents.contract import Agent, AgentRun
from hone.agents.settings import ContextSettings
from hone.policy.engine import ContextOverflow
from hone.policy.errors import PolicyError
from hone.policy.reply import Chat, Purpose, Reply, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task

SYSTEM: Message = {"role": "system", "content": "S"}
USER: Message = {"role": "user", "content": "U"}
ATTEMPTS = 8  # at the most that fits, to within a hundredth


class ManagedAgent:
    """An agent whose conversations a context policy manages; see `hone.agents.contract.Agent`."""

    def __init__(self, agent: Agent, settings: ContextSettings) -> None:
        self.agent = agent
        self._settings = settings

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        await self.agent.run(task, sandbox, ManagedChat(chat, self._settings), run)


class ManagedChat:
    """A chat that is asked with what a context policy leaves of the messages; `chat` sees nothing else."""

    def __init__(self, chat: Chat, settings: ContextSettings) -> None:
        self.tree = chat.tree
        self._chat = chat
        self._settings = settings
        self._cutters = {purpose: _Cutter(chat, settings.head_ratio) for purpose in Purpose}

    @property
    def max_prompt_tokens(self) -> int:
        return self._chat.max_prompt_tokens

    def measure(self, messages: Sequence[Message], *, tools: Sequence[ToolSpec] | None = None) -> int:
        return self._chat.measure(self.managed(messages, tools, Purpose.MAIN), tools=tools)

    async def reply(
        self,
        messages: list[Message],
        *,
        tools: Sequence[ToolSpec] | None = None,
        purpose: Purpose = Purpose.MAIN,
    ) -> Reply:
        """Raises ContextOverflow, beside what `chat` raises, when the messages cannot be cut down enough."""
        asked = self.managed(messages, tools, purpose)
        return await self._chat.reply(asked, tools=tools, purpose=purpose)

    def managed(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, purpose: Purpose
    ) -> list[Message]:
        """What the policy is asked with. Raises ContextOverflow."""
        if self._settings.policy == "none":
            return list(messages)
        if self._settings.policy == "drop_thinking":
            return drop_thinking(messages)
        return self._cutters[purpose].cut(messages, tools)


class _Cutter:
    """Cuts one conversation, again and again as it grows."""

    def __init__(self, chat: Chat, head_ratio: float) -> None:
        self._chat = chat
        self._head_ratio = head_ratio
        self._costs = TurnCosts(chat)
        self._long = False  # whether it was cut last time
        self._merge: bool | None = None  # whether the template forbids two user messages in a row

    def cut(self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None) -> list[Message]:
        """What fits the chat's prompts. Raises ContextOverflow.

        A conversation that was cut before is not measured whole again, so that a turn always costs the same.
        """
        budget = self._chat.max_prompt_tokens
        if not self._long and self._chat.measure(messages, tools=tools) <= budget:
            return list(messages)
        if self._merge is None:
            self._merge = _forbids_two_users(self._chat)
        self._costs.use(tools, system=messages[0]["role"] == "system")
        kept = self._fitted(messages, tools, budget)
        self._long = kept != list(messages)
        return kept

    def _fitted(
        self, messages: Sequence[Message], tools: Sequence[ToolSpec] | None, budget: int
    ) -> list[Message]:
        """The most that fits as measured whole; where turns cost more together than one by one, bisected."""
        best: list[Message] | None = None
        low, high, limit, tokens = 0, budget, budget, 0
        for _ in range(ATTEMPTS):
            try:
                kept = self._head_tail(messages, limit)
            except ContextOverflow:
                if limit == budget:
                    raise
                low = limit
            else:
                tokens = self._chat.measure(kept, tools=tools)
                if tokens <= budget:
                    best, low = kept, limit
                else:
                    high = limit
            if high - low <= 1:
                break
            limit = (low + high) // 2
        if best is None:
            raise ContextOverflow(tokens, budget)
        return best

    def _head_tail(self, messages: Sequence[Message], budget: int) -> list[Message]:
        return head_tail(
            messages,
            budget=budget,
            counter=self._costs,
            head_ratio=self._head_ratio,
            merge=bool(self._merge),
        )


class TurnCosts:
    """`hone.agents.context.head_tail.Counter` by a chat's own template and tokenizer.

    A turn is measured once, in a conversation of its own: what S, U, turn has beyond S, U.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._tools: list[ToolSpec] | None = None
        self._dummy: list[Message] = []
        self._bare = 0  # tokens of the dummy
        self._known: list[tuple[Turn, int]] = []  # turns of the last conversation, in order

    def use(self, tools: Sequence[ToolSpec] | None, *, system: bool) -> None:
        """Count for conversations with these tools, with or without a system prompt."""
        dummy, shown = [SYSTEM, USER] if system else [USER], list(tools) if tools else None
        if (dummy, shown) != (self._dummy, self._tools):
            self._dummy, self._tools, self._known = dummy, shown, []
            self._bare = self.prompt(dummy)

    def prompt(self, messages: Sequence[Message]) -> int:
        return self._chat.measure(messages, tools=self._tools)

    def turn(self, turn: Turn) -> int:
        return max(0, self.prompt([*self._dummy, *turn]) - self._bare)

    def turns(self, turns: Sequence[Turn]) -> list[int]:
        for index, turn in enumerate(turns):
            if index < len(self._known) and self._known[index][0] != turn:
                del self._known[index:]
            if index == len(self._known):
                self._known.append(([dict(message) for message in turn], self.turn(turn)))
        return [cost for _, cost in self._known[: len(turns)]]


def _forbids_two_users(chat: Chat) -> bool:
    """Whether the chat template refuses two messages of the user in a row."""
    try:
        chat.measure([USER, USER])
    except PolicyError:
        return True
    return False
