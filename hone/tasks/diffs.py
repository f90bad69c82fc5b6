"""Unified diffs that `git apply` accepts."""

from __future__ import annotations

import difflib


def file_diff(path: str, before: str, after: str) -> str:
    """Return the patch of one file; empty where nothing changes."""
    lines = difflib.unified_diff(git_lines(before), git_lines(after), f"a/{path}", f"b/{path}")
    parts = [line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in lines]
    return f"diff --git a/{path} b/{path}\n{''.join(parts)}" if parts else ""


def git_lines(text: str) -> list[str]:
    """Split a text at line feeds only, as git does; lines keep their ends."""
    *lines, rest = text.split("\n")
    return [f"{line}\n" for line in lines] + ([rest] if rest else [])
