"""Unified diffs that `git apply` accepts."""

from __future__ import annotations

import difflib
import re
from collections import deque

from hone.tasks.errors import TaskError

_HUNK = re.compile(
    r"@@ -(?P<old>\d+(?:,(?P<lost>\d+))?) \+(?P<new>\d+(?:,(?P<made>\d+))?) @@(?P<rest>.*)", re.DOTALL
)
_SAME_FILE = re.compile(r"diff --git a/(.*) b/\1\n")
_FILES = re.compile(r"diff --git a/(?P<old>.*) b/(?P<new>.*)\n")
_INDEX = re.compile(r"index (?P<old>[0-9a-f]+)\.\.(?P<new>[0-9a-f]+)(?P<rest>.*)", re.DOTALL)
_PAIRS = {"--- ": "+++ ", "rename from ": "rename to ", "old mode ": "new mode "}
_OPPOSITE = {"new file mode ": "deleted file mode ", "deleted file mode ": "new file mode "}
_SIDE = {"a/": "b/", "b/": "a/"}
_MARKS = {"+": "-", "-": "+", " ": " ", "\\": "\\", "\n": "\n"}


def file_diff(path: str, before: str, after: str) -> str:
    """Return the patch of one file; empty where nothing changes."""
    lines = difflib.unified_diff(git_lines(before), git_lines(after), f"a/{path}", f"b/{path}")
    parts = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return f"diff --git a/{path} b/{path}\n{''.join(parts)}" if parts else ""


def git_lines(text: str) -> list[str]:
    """Split a text at line feeds only, as git does; lines keep their ends."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])


def reverse(patch: str) -> str:
    """Return the patch that undoes `patch`; reversing it again gives the same text.

    Raises:
        TaskError: a hunk is truncated, or the patch copies a file or is binary.
    """
    lines = deque(git_lines(patch))
    made: list[str] = []
    while lines:
        if (hunk := _HUNK.fullmatch(lines[0])) is None:
            made += _reverse_header(lines)
            continue
        made.append(f"@@ -{hunk['new']} +{hunk['old']} @@{hunk['rest']}")
        lines.popleft()
        made += _reverse_hunk(lines, lost=int(hunk["lost"] or 1), added=int(hunk["made"] or 1))
    return "".join(made)


def _reverse_header(lines: deque[str]) -> list[str]:
    """Take one line, or a pair that belongs together, from the front of a patch, and return its reverse."""
    line = lines.popleft()
    if line.startswith(("GIT binary patch", "Binary files ", "copy from ")):
        raise TaskError("a patch of binary files or copies cannot be reversed")
    for first, second in _PAIRS.items():
        if line.startswith(first) and lines and lines[0].startswith(second) and lines[0].endswith("\n"):
            old, new = line.removeprefix(first), lines.popleft().removeprefix(second)
            sides = first == "--- "
            return [first + (_flip(new) if sides else new), second + (_flip(old) if sides else old)]
    for mode, opposite in _OPPOSITE.items():
        if line.startswith(mode):
            return [opposite + line.removeprefix(mode)]
    if index := _INDEX.fullmatch(line):
        return [f"index {index['new']}..{index['old']}{index['rest']}"]
    if (files := _FILES.fullmatch(line)) and not _SAME_FILE.fullmatch(line):
        return [f"diff --git a/{files['new']} b/{files['old']}\n"]
    return [line]


def _flip(path: str) -> str:
    return _SIDE.get(path[:2], path[:2]) + path[2:]


def _reverse_hunk(lines: deque[str], *, lost: int, added: int) -> list[str]:
    """Take the lines of a hunk from the front of a patch and return their reverse."""
    made: list[str] = []
    while lost > 0 or added > 0:
        if not lines or lines[0][0] not in _MARKS:
            raise TaskError("its patch has a truncated hunk")
        line = lines.popleft()
        lost -= line[0] in "- \n"
        added -= line[0] in "+ \n"
        made.append(_MARKS[line[0]] + line[1:])
    return made
