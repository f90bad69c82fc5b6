"""Breakpoints, stored outside the sandbox so that they survive edits and new sessions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakpoint:
    path: str  # absolute, links resolved
    line: int  # from 1
    condition: str = ""
    temporary: bool = False
    enabled: bool = True
    ignore: int = 0  # hits to pass before the program stops


def parse(sent: Any) -> tuple[Breakpoint, ...]:
    """Return the breakpoints that a server sent; invalid entries are dropped."""
    found: list[Breakpoint] = []
    for each in sent if isinstance(sent, list) else []:
        if isinstance(each, dict) and isinstance(each.get("path"), str) and isinstance(each.get("line"), int):
            found.append(
                Breakpoint(
                    path=each["path"],
                    line=each["line"],
                    condition=str(each.get("condition", "")),
                    temporary=bool(each.get("temporary")),
                    enabled=bool(each.get("enabled", True)),
                    ignore=each["ignore"] if isinstance(each.get("ignore"), int) else 0,
                )
            )
    return tuple(found)


def shift(
    breakpoints: Sequence[Breakpoint], path: str, kept: Sequence[Sequence[int]]
) -> tuple[Breakpoint, ...]:
    """Return the breakpoints after an edit of `path`: each moves with its line or is removed with it.

    Args:
        kept: the runs of unchanged lines: (first line before, first line after, count).

    Example: lines 4 and 5 of 9 became three: kept = [(1, 1, 3), (6, 7, 4)]; a breakpoint at 8 moves to 9.
    """
    moved: list[Breakpoint] = []
    for each in breakpoints:
        if each.path != path:
            moved.append(each)
            continue
        for before, after, count in kept:
            if before <= each.line < before + count:
                moved.append(dataclasses.replace(each, line=each.line - before + after))
                break
    return tuple(moved)


def listing(breakpoints: Sequence[Breakpoint], workdir: str) -> str:
    """Return one line of text per breakpoint, sorted by file and line."""
    if not breakpoints:
        return "No breakpoints are set."
    ordered = sorted(breakpoints, key=lambda each: (each.path, each.line))
    return "\n".join(_line(each, workdir) for each in ordered)


def _line(each: Breakpoint, workdir: str) -> str:
    notes = [
        *([f"if {each.condition}"] if each.condition else []),
        *(["once"] if each.temporary else []),
        *([] if each.enabled else ["disabled"]),
        *([f"passed {each.ignore} times first"] if each.ignore else []),
    ]
    where = f"line {each.line} in {shown(each.path, workdir)}"
    return f"{where} ({', '.join(notes)})" if notes else where


def shown(path: str, workdir: str) -> str:
    """Return a path relative to the working directory if it is below it."""
    return path.removeprefix(workdir.rstrip("/") + "/")
