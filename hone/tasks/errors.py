"""The errors of the tasks room, and lists in their messages."""

from __future__ import annotations

from collections.abc import Sequence

from hone.utils.errors import HoneError


class TaskError(HoneError, ValueError):
    """A task or a file of tasks cannot be used."""


class Unresolvable(TaskError):
    """The package index answered, and no versions on it meet the requirements and can be built."""


def first_few(items: Sequence[object], shown: int = 5, separator: str = ", ") -> str:
    """Return the first items as text and the number of the rest."""
    more = f"{separator}and {len(items) - shown} more" if len(items) > shown else ""
    return separator.join(map(str, items[:shown])) + more
