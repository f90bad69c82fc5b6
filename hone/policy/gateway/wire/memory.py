"""What a session has read before: a client sends its history with every call, and only its end is new."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from operator import is_
from typing import Any

from hone.types import Message

_LINES = 8  # conversations that may alternate, such as those of sub-agents


@dataclass(frozen=True, slots=True)
class _Line:
    items: list[Any]  # as they came
    ends: list[int]  # how many messages there are up to each of them
    messages: list[Message]


class Memory:
    """Reads a list of items one by one; those of a known beginning cost nothing.

    Known are items that are the same objects (see `BodyReader`) or equal ones.
    """

    def __init__(self) -> None:
        self._lines: list[_Line] = []  # the latest last

    def read(
        self,
        items: list[Any],
        convert: Callable[[Any, int], list[Message]],
        is_telling: Callable[[Any], bool] = lambda _: True,
    ) -> list[Message]:
        """The messages that `items` mean, which nobody may change.

        `is_telling` says of an item whether being equal means being the same: 1 == True does not. Raises what
        `convert` raises.
        """
        line, known = self._longest(items, is_telling)
        ends = [] if line is None else line.ends[:known]
        messages = line.messages[: ends[-1]] if line is not None and ends else []
        for i in range(known, len(items)):
            messages.extend(convert(items[i], i))
            ends.append(len(messages))
        kept = [other for other in self._lines if other is not line or known < len(other.items)]
        self._lines = [*kept[-_LINES + 1 :], _Line(items, ends, messages)]
        return messages

    def _longest(self, items: list[Any], is_telling: Callable[[Any], bool]) -> tuple[_Line | None, int]:
        """The line with the longest beginning in common, and that length."""
        found: tuple[_Line | None, int] = (None, 0)
        for line in self._lines:
            known = _shared(line.items, items, is_telling)
            if known > found[1]:
                found = line, known
        return found


def is_beginning(short: list[Any], long: list[Any]) -> bool:
    """Whether `long` begins with the very objects of `short`."""
    return len(short) <= len(long) and all(map(is_, short, long))


def _shared(known: list[Any], items: list[Any], is_telling: Callable[[Any], bool]) -> int:
    if is_beginning(known, items):
        return len(known)
    for i, (one, other) in enumerate(zip(known, items, strict=False)):
        if one is not other and (one != other or not is_telling(other)):
            return i
    return min(len(known), len(items))
