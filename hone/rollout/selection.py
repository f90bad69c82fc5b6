"""Choose the conversations that supervised training imitates (rejection sampling).

    sources -> drop what did not resolve its task -> drop repeats -> per task, the shortest -> examples

A source is a file of conversations, or the directory of a run or an evaluation with any engine.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from hone.outcomes import OUTCOME_RULES, Fault
from hone.rollout.conversations import Example, load_all
from hone.rollout.errors import StoreError
from hone.rollout.rewards import solved
from hone.types import Message, Trajectory
from hone.utils.errors import writing
from hone.utils.files import write_file


class Decision(StrEnum):
    """Whether an example is used, or why not."""

    KEPT = "kept"
    FAULT = "infrastructure_fault"
    UNRESOLVED = "unresolved"
    NO_REPLY = "no_reply"  # no assistant message
    REPEATED = "repeated"  # the same messages as another example
    SURPLUS = "surplus"  # `per_task` shorter ones of its task are kept


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """One example and what became of it."""

    source: str
    task_id: str
    rollout_id: str
    characters: int  # of its assistant messages
    decision: Decision


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    examples: Sequence[Example]  # kept, in the order of the sources; with several, their ids begin with it
    choices: Sequence[Choice]  # all, in the order of the sources

    def table(self) -> list[str]:
        """Return the lines of a table: per source, how many examples met each decision."""
        counts: dict[str, Counter[Decision]] = {}
        for choice in self.choices:
            counts.setdefault(choice.source, Counter())[choice.decision] += 1
        rows = [[name, str(c.total()), *(str(c[each]) for each in Decision)] for name, c in counts.items()]
        rows.insert(0, ["source", "examples", *Decision])
        widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
        return [
            "  ".join([first.ljust(widths[0]), *map(str.rjust, others, widths[1:])])
            for first, *others in rows
        ]

    def write(self, path: Path) -> None:
        """Write one line of JSON per example. Raises StoreError."""
        lines = "".join(json.dumps(dataclasses.asdict(choice)) + "\n" for choice in self.choices)
        with writing(path, StoreError):
            path.parent.mkdir(parents=True, exist_ok=True)
            write_file(path, lines)


def select(paths: Sequence[Path], *, only_resolved: bool = True, per_task: int | None = None) -> Selection:
    """Return what is kept of the examples in `paths`, and why the others are not.

    Args:
        only_resolved: drop rollouts that did not resolve their task; conversations of files have no outcome.
        per_task: keep at most so many of each task, those with the shortest assistant messages.

    Raises StoreError when a source cannot be read.
    """
    found = [(path, example) for path in paths for example in load_all(path)]
    decisions = [_refusal(example, only_resolved) for _, example in found]
    lengths = [sum(map(_characters, _replies(example))) for _, example in found]
    seen: set[str] = set()
    kept: Counter[str] = Counter()
    for index in sorted(range(len(found)), key=lambda at: lengths[at]):  # stable: earlier sources first
        example = found[index][1]
        if decisions[index] is not Decision.KEPT:
            continue
        content = json.dumps([example.task_id, example.messages], sort_keys=True)
        if content in seen:
            decisions[index] = Decision.REPEATED
        elif per_task is not None and kept[example.task_id] == per_task:
            decisions[index] = Decision.SURPLUS
        else:
            seen.add(content)
            kept[example.task_id] += 1
    named = _namer(paths)
    return Selection(
        examples=[
            dataclasses.replace(example, rollout_id=named(path, example.rollout_id))
            for (path, example), decision in zip(found, decisions, strict=True)
            if decision is Decision.KEPT
        ],
        choices=[
            Choice(
                source=str(path),
                task_id=example.task_id,
                rollout_id=example.rollout_id,
                characters=length,
                decision=decision,
            )
            for (path, example), length, decision in zip(found, lengths, decisions, strict=True)
        ],
    )


def _refusal(example: Example, only_resolved: bool) -> Decision:
    if isinstance(example, Trajectory):
        if OUTCOME_RULES[example.outcome].fault is Fault.INFRASTRUCTURE:
            return Decision.FAULT
        if only_resolved and not solved(example.outcome, example.verdict):
            return Decision.UNRESOLVED
    return Decision.KEPT if _replies(example) else Decision.NO_REPLY


def _namer(paths: Sequence[Path]) -> Callable[[Path, str], str]:
    """Return a function that makes the rollout ids of several sources unique."""
    if len(paths) == 1:
        return lambda path, rollout_id: rollout_id
    return lambda path, rollout_id: f"{path}:{rollout_id}"


def _replies(example: Example) -> list[Message]:
    return [message for message in example.messages if message["role"] == "assistant"]


def _characters(reply: Mapping[str, object]) -> int:
    """Return the length of a reply with its reasoning and its tool calls."""
    parts = (reply.get("content"), reply.get("reasoning_content"), reply.get("tool_calls"))
    return sum(len(part if isinstance(part, str) else json.dumps(part)) for part in parts if part)
