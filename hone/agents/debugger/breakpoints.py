"""Breakpoints, kept outside of the debugger, so that they survive edits and new sessions."""

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
    ignore: int = 0  # how often it is passed before it stops the program


def read(told: Any) -> tuple[Breakpoint, ...]:
    """What a server tells of its breakpoints; what is none is left out."""
    found: list[Breakpoint] = []
    for each in told if isinstance(told, list) else []:
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
    """Breakpoints after an edit of `path`: each stays with its line; those of lines that are gone go.

    `kept` lists the runs of lines that the edit left as they were: (first line before, first line after,
    how many).

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
    """One line for each, in the order of files and lines."""
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
    """A path as an agent reads it: relative to the working directory where it lies below it."""
    return path.removeprefix(workdir.rstrip("/") + "/")
