"""Keep the head and the tail of a conversation: omit whole turns from the middle, never the newest.

The algorithm and its numbers are those of OpenClaw's SWE-RL. With B the budget, F the tokens of the system
prompt and the problem, M those of the marker in place of the omitted turns:

    available = B - F - M        head <= int(head_ratio * available)        tail <= available - head

The head takes turns from the oldest until one does not fit, the tail from the newest until one does not fit.
Deliberate differences: the newest turn always stays (one that fits by itself takes its room from the head;
one that does not is cut in the middle of its observations, with a note); the tail gets the tokens that the
head leaves unused; and the result never exceeds the budget.

Example: a context of 16,384 minus 4,096 for the reply is a budget of 12,288; with F + M = 788, 11,500 are
available: 3,450 for the head and 8,050 for the tail.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from hone.policy.engine import ContextOverflow
from hone.types import Message

Turn = list[Message]  # a reply and all answers to it, tool results too


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
    available = budget - base
    if len(turns) > 1:
        available = budget - counter.prompt(_with_marker(fixed, omitted_marker(len(turns)), merge))
    head_room, newest = int(available * head_ratio), turns[-1]
    if costs[-1] <= available:
        head_room = min(head_room, available - costs[-1])
    head = _fill(costs[:-1], head_room)
    left = available - sum(costs[:head])
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
