"""Keep an agent's conversation within the model's context.

The agent keeps its whole history; the policy is asked with the messages that a context policy leaves of it.
Each rewrite is a fork of the token tree, so every reply is trained once, in exactly the context that it saw.

`head_tail` keeps the head and the tail of a conversation: it omits whole turns from the middle, never the
newest. The algorithm and its numbers are those of OpenClaw's SWE-RL. With B the budget, F the tokens of the
system prompt and the problem, M those of the marker in place of the omitted turns:

    available = B - F - M        head <= int(head_ratio * available)        tail <= available - head

The head takes turns from the oldest until one does not fit, the tail from the newest until one does not fit.
Deliberate differences: the newest turn always stays (one that fits by itself takes its room from the head;
one that does not is cut in the middle of its observations, with a note); the tail gets the tokens that the
head leaves unused; and the result never exceeds the budget.

Example: a context of 16,384 minus 4,096 for the reply is a budget of 12,288; with F + M = 788, 11,500 are
available: 3,450 for the head and 8,050 for the tail.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Protocol

from hone.agents.contract import Agent, AgentRun
from hone.agents.settings import ContextSettings
from hone.policy.engine import ContextOverflow
from hone.policy.errors import PolicyError
from hone.policy.reply import CallKind, Chat, Reply, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task

SYSTEM: Message = {"role": "system", "content": "S"}
USER: Message = {"role": "user", "content": "U"}
Turn = list[Message]  # a reply and all answers to it, tool results too


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
    """`hone.agents.context.Counter` by a chat's own template and tokenizer.

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


class Counter(Protocol):
    """Counts tokens."""

    def prompt(self, messages: Sequence[Message]) -> int:
        """Return the tokens of the prompt of these messages."""
        ...

    def turn(self, turn: Turn) -> int:
        """Return the tokens that a turn adds to any prompt."""
        ...


def omitted_marker(turns: int) -> Message:
    """Return the message in place of `turns` omitted turns."""
    text = f"[... {turns} turn(s) of interaction history omitted due to context window limit ...]"
    return {"role": "user", "content": text}


def head_tail(
    messages: Sequence[Message],
    *,
    budget: int,
    counter: Counter,
    head_ratio: float = 0.3,
    merge: bool = False,
) -> list[Message]:
    """Return the conversation cut to `budget` tokens, counted turn by turn.

    Invariants: the messages before the first reply and the newest turn stay; the order is kept; one marker
    gives the number of omitted turns, if there are any.

    Args:
        merge: append the marker to the user message before it, for templates that refuse two in a row.
    Raises:
        ContextOverflow: the messages that must stay do not fit.
    """
    fixed, turns = split_turns(messages)
    costs = [counter.turn(turn) for turn in turns]
    base = counter.prompt(fixed)
    if base + sum(costs) <= budget:
        return list(messages)
    if not turns:
        raise ContextOverflow(base, budget)
    room = budget - base
    marker = omitted_marker(len(turns))
    marker_alone = counter.prompt(_with_marker(fixed, marker, merge)) - base if len(turns) > 1 else 0

    def marker_cost(head: int) -> int:
        """Return the tokens of the marker after the first `head` turns."""
        if merge and head and turns[head - 1][-1]["role"] != "user":  # nothing to append it to
            return counter.turn([*turns[head - 1], marker]) - costs[head - 1]
        return marker_alone

    available, newest = room - marker_alone, turns[-1]
    least = costs[-1] if costs[-1] <= available else counter.turn(_cut_all(newest, 0))
    head = _fill(costs[:-1], int(available * head_ratio))
    while head and sum(costs[:head]) + marker_cost(head) + least > room:
        head -= 1
    left = room - sum(costs[:head]) - marker_cost(head)
    if costs[-1] > left:
        newest = cut_turn(newest, left, counter)
        costs[-1] = counter.turn(newest)
        if costs[-1] > left:
            raise ContextOverflow(budget - left + costs[-1], budget)
    tail = _fill(costs[head:][::-1], left)
    first = len(turns) - tail
    kept = [*fixed, *(message for turn in turns[:head] for message in turn)]
    if first > head:
        kept = _with_marker(kept, omitted_marker(first - head), merge)
    return [*kept, *(message for turn in [*turns[first:-1], newest] for message in turn)]


def split_turns(messages: Sequence[Message]) -> tuple[list[Message], list[Turn]]:
    """Return the messages before the first reply (system prompt, problem), and the turns after them."""
    roles = [message["role"] for message in messages]
    starts = [i for i in range(1, len(roles)) if roles[i] == "assistant" and roles[i - 1] != "assistant"]
    ends = [*starts[1:], len(messages)]
    fixed = list(messages[: starts[0]]) if starts else list(messages)
    return fixed, [list(messages[start:end]) for start, end in zip(starts, ends, strict=bool(starts))]


def cut_turn(turn: Turn, room: int, counter: Counter) -> Turn:
    """Return the turn with its longest observations cut in the middle, all to one length, to fit `room`.

    A turn that does not fit with empty observations is returned with empty observations.
    """
    longest = max((len(message["content"]) for message in turn if _observes(message)), default=0)
    least = counter.turn(_cut_all(turn, 0))
    keep, cut, cost = longest, turn, counter.turn(turn)
    while cost > room and keep > 0:
        share = max(room - least, 0) / max(cost - least, 1)
        keep = int(keep * min(0.9, 0.97 * share))
        cut = _cut_all(turn, keep)
        cost = counter.turn(cut)
    return cut


def _fill(costs: Sequence[int], room: int) -> int:
    """Return how many fit, in order, before the first that does not."""
    used = 0
    for count, cost in enumerate(costs):
        used += cost
        if used > room:
            return count
    return len(costs)


def _with_marker(kept: list[Message], marker: Message, merge: bool) -> list[Message]:
    if merge and kept[-1]["role"] == "user":
        text = f"{kept[-1]['content']}\n\n{marker['content']}"
        return [*kept[:-1], {**kept[-1], "content": text}]
    return [*kept, marker]


def _observes(message: Message) -> bool:
    return message["role"] != "assistant" and isinstance(message.get("content"), str)


def _cut_all(turn: Turn, keep: int) -> Turn:
    return [
        {**message, "content": _cut(message["content"], keep)} if _observes(message) else message
        for message in turn
    ]


def _cut(text: str, keep: int) -> str:
    """Return head and tail of a text, `keep` characters together, unless the note is longer than the cut."""
    note = f"[... {len(text) - keep} characters omitted due to context window limit ...]"
    if len(text) <= keep + len(note):
        return text
    head = keep // 2
    return f"{text[:head]}\n{note}\n{text[len(text) - (keep - head) :]}"
