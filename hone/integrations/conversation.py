"""A rollout as the steps that other programs show: messages, replies, tool calls and their results.

A trajectory holds the messages of the policy's conversation and, apart from them, the turns that the agent
made of its replies. Here each reply is one step with what came of it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

from hone.policy.errors import PolicyError
from hone.policy.messages import key_of
from hone.types import Message, Trajectory, Turn


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolUse:
    """One call of a tool, or one command written as text."""

    id: str
    name: str
    arguments: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    call_id: str | None  # of the call that it answers; None: it answers the reply as a whole
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One message, or one reply with its tool calls and their results."""

    role: str  # "system", "user" or "assistant"
    text: str  # this and every other text here is `clean`; that of `turn` is as it was recorded
    turn: Turn | None = None  # None: a message, or a reply that the agent recorded no turn of
    reasoning: str | None = None
    calls: tuple[ToolUse, ...] = ()
    results: tuple[Result, ...] = ()
    copied: bool = False  # repeats an earlier step, because the agent began its history again


def conversation(trajectory: Trajectory) -> list[Step]:
    """Return the steps of a rollout in their order; every turn is the turn of exactly one step.

    Replies are matched to turns by their text, so a reply that no message holds (some agents omit those that
    they cannot parse) stands where its answer does.
    """
    walk = _Walk(trajectory)
    for message in trajectory.messages:
        walk.add(message)
    walk.place_turns(len(trajectory.turns))
    return [_with_observation(step) for step in walk.steps]


class _Walk:
    """Walks along messages and turns side by side."""

    def __init__(self, trajectory: Trajectory) -> None:
        self.steps: list[Step] = []
        self._turns = trajectory.turns
        self._placed = 0  # turns
        self._seen: set[object] = set()  # keys of messages
        self._first: object = None
        self._repeats = False  # whether a history that began again is being repeated
        self._tool_answered = False  # whether a tool's message answers the last reply

    def add(self, message: Message) -> None:
        key = _key(message)
        if self._first is None:
            self._first = key
        elif key == self._first and message.get("role") != "assistant":
            self._repeats = True
        copied = self._repeats and key in self._seen
        self._seen.add(key)
        text = text_of(message.get("content"))
        if message.get("role") == "assistant":
            self._add_reply(message, text, copied)
        elif not self._attach(message, text):
            role = "system" if message.get("role") == "system" else "user"
            self.steps.append(Step(role=role, text=clean(text), copied=copied))

    def place_turns(self, end: int) -> None:
        """Add the turns before `end` that have no step yet, each with the call that its action names."""
        self._tool_answered = False
        for turn in self._turns[self._placed : end]:
            calls = () if turn.action is None else (_written_call(turn),)
            self.steps.append(Step(role="assistant", text=clean(turn.reply), turn=turn, calls=calls))
        self._placed = max(self._placed, end)

    def _add_reply(self, message: Message, text: str, copied: bool) -> None:
        self._tool_answered = False
        turn = None if copied else self._turn_of(text)
        calls = tuple(_native_call(call) for call in message.get("tool_calls") or ())
        if turn is not None:
            self._repeats = False
            if not calls and turn.action is not None:
                calls = (_written_call(turn),)
        reasoning = message.get("reasoning_content") or message.get("reasoning")
        step = Step(
            role="assistant",
            text=clean(text),
            turn=turn,
            reasoning=clean(str(reasoning)) if reasoning else None,
            calls=calls,
            copied=copied,
        )
        self.steps.append(step)

    def _turn_of(self, text: str) -> Turn | None:
        """Return the next turn with this reply; the turns that it passes over get steps of their own."""
        for index in range(self._placed, len(self._turns)):
            if self._turns[index].reply == text:
                self.place_turns(index)
                self._placed = index + 1
                return self._turns[index]
        return None

    def _attach(self, message: Message, text: str) -> bool:
        """Add a message to the reply that it answers; return False for one that answers none."""
        by_tool = message.get("role") == "tool"
        if not by_tool and not self._answers(text):
            return False
        last = self.steps[-1] if self.steps else None
        if last is None or last.role != "assistant":
            return False
        self._tool_answered = self._tool_answered or by_tool
        known = [call.id for call in last.calls]
        call_id = clean(str(message.get("tool_call_id"))) if by_tool else None
        if call_id not in known:
            call_id = known[0] if len(known) == 1 else None
        result = Result(call_id=call_id, text=clean(text))
        self.steps[-1] = replace(last, results=(*last.results, result))
        return True

    def _answers(self, text: str) -> bool:
        """Return whether a message that is no tool's answers the last reply, or one that no message holds.

        The second kind of reply gets its step here.
        """
        if not text:
            return False
        last = self.steps[-1] if self.steps else None
        if last is not None and last.turn is not None and not self._tool_answered:
            answers = "\n".join([*(result.text for result in last.results), text])
            if last.turn.observation.startswith(answers):
                return True
        if self._placed < len(self._turns) and self._turns[self._placed].observation == text:
            self.place_turns(self._placed + 1)
            return True
        return False


def _with_observation(step: Step) -> Step:
    """Return the step with its turn's observation, if no message holds it."""
    if step.turn is None or step.results or not step.turn.observation:
        return step
    call_id = step.calls[0].id if len(step.calls) == 1 else None
    return replace(step, results=(Result(call_id=call_id, text=clean(step.turn.observation)),))


def _native_call(call: Any) -> ToolUse:
    function = call.get("function") or {}
    return ToolUse(
        id=clean(str(call.get("id") or "")),
        name=clean(str(function.get("name") or "")),
        arguments=_object(function.get("arguments")),
    )


def _written_call(turn: Turn) -> ToolUse:
    """Return an action as a call: that of the tool which it names as JSON, or a shell command."""
    name, arguments = "bash", {"command": turn.action}
    written = _object(turn.action)
    if set(written) == {"name", "arguments"} and isinstance(written["name"], str):
        name, arguments = written["name"], _object(written["arguments"])
    return ToolUse(id=f"call_{turn.index}", name=clean(name), arguments=arguments)


def _object(arguments: Any) -> dict[str, Any]:
    """Return the arguments of a call as an object; a model may write anything."""
    try:
        value = json.loads(arguments) if isinstance(arguments, str) else arguments
        value = json.loads(clean(json.dumps(value, ensure_ascii=False, allow_nan=False)))
    except (ValueError, RecursionError):
        return {"arguments": clean(str(arguments))}
    return value if isinstance(value, dict) else {"arguments": value}


def clean(text: str) -> str:
    """Return text that UTF-8 can hold: each lone surrogate becomes a question mark."""
    return text.encode("utf-8", "replace").decode()


def text_of(content: Any) -> str:
    """Return a message's content for display: its text, with a mark for each part that is not text."""
    if content is None or isinstance(content, str):
        return content or ""
    parts: Iterable[Any] = content if isinstance(content, list) else [content]
    return "".join(
        str(part["text"]) if isinstance(part, dict) and "text" in part else f"[{_kind(part)}]"
        for part in parts
    )


def _kind(part: Any) -> str:
    return str(part.get("type", "object")) if isinstance(part, dict) else type(part).__name__


def _key(message: Message) -> object:
    try:
        return key_of(message)
    except (PolicyError, KeyError, TypeError, AttributeError):
        return json.dumps(message, sort_keys=True)
