"""Issues exported from a tracker: one JSON object per line with `number`, `title` and `body`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.formats.rows import text


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    number: int
    title: str
    body: str


def read_issues(path: Path) -> Mapping[int, Issue]:
    """Return the issues of a file by number. Raises TaskError naming the first row that cannot be read."""
    issues: dict[int, Issue] = {}
    for count, row in enumerate(read_rows(path), start=1):
        try:
            if isinstance(row, TaskError):
                raise row
            number = row.get("number")
            if not isinstance(number, int) or isinstance(number, bool):
                raise TaskError(f"`number` must be a whole number, got {number!r}")
            issues[number] = Issue(number=number, title=text(row, "title"), body=text(row, "body", ""))
        except TaskError as error:
            raise TaskError(f"{path}, issue {count}: {error}") from None
    return issues
