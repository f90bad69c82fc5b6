"""The files and functions that a patch changes."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator, Mapping

_FILE = re.compile(r"(?:---|\+\+\+) (?:[ab]/)?(?P<path>[^\t\n]+)")
_HUNK = re.compile(r"@@ -\d+(?:,(?P<old>\d+))? \+(?P<start>\d+)(?:,(?P<new>\d+))? @@")
_NO_FILE = "/dev/null"


def changed_files(patch: str) -> tuple[str, ...]:
    """Return the paths that a unified diff changes, sorted."""
    return tuple(sorted({path for path, _ in _lines(patch)}))


def changed_functions(patch: str, after: Mapping[str, str]) -> tuple[str, ...]:
    """Return the functions that a patch changes, qualified such as "Parser.parse", sorted.

    Lines outside of functions have none.

    Args:
        after: path -> text of the Python files after the patch; others are passed over.
    """
    found: set[str] = set()
    spans = {path: list(_spans(text)) for path, text in after.items()}
    for path, line in _lines(patch):
        around = [(start, name) for start, end, name in spans.get(path, ()) if start <= line <= end]
        if around:
            found.add(max(around)[1])
    return tuple(sorted(found))


def _lines(patch: str) -> Iterator[tuple[str, int]]:
    """Yield path and line, counted after the patch, of each changed line; of a removed one, where it was."""
    path, line = "", 0
    old = new = 0  # lines of the hunk that are left
    for text in patch.splitlines():
        if old > 0 or new > 0:
            mark = text[:1]
            if mark in ("+", "-"):
                yield path, line
            old -= mark in ("-", " ", "")
            new -= mark in ("+", " ", "")
            line += mark in ("+", " ", "")
        elif hunk := _HUNK.match(text):
            line = int(hunk["start"])
            old, new = int(hunk["old"] or 1), int(hunk["new"] or 1)
        elif (named := _FILE.match(text)) and named["path"] != _NO_FILE:
            path = named["path"]


def _spans(text: str) -> Iterator[tuple[int, int, str]]:
    """Yield first line, last line and qualified name of each function; none of a text that is not Python."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            tree = ast.parse(text)
    except (SyntaxError, ValueError, RecursionError):
        return
    yield from _inside(tree, "")


def _inside(node: ast.AST, prefix: str) -> Iterator[tuple[int, int, str]]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([child.lineno, *(each.lineno for each in child.decorator_list)])
            yield first, child.end_lineno or child.lineno, f"{prefix}{child.name}"
            yield from _inside(child, f"{prefix}{child.name}.")
        elif isinstance(child, ast.ClassDef):
            yield from _inside(child, f"{prefix}{child.name}.")
        else:
            yield from _inside(child, prefix)
