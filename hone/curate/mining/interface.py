"""New names and messages that hidden tests expect: an agent cannot guess them, so the statement lists them.

Everything is taken from the tests. The fix only decides which of their names and texts are new.
"""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from hone.curate.mining.refusal import CommitRejected, Reason
from hone.curate.syntax import defined_names, parse, words

_SHOWN_CHARS = 100
_SHOWN_ITEMS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    names: tuple[str, ...]  # such as "fields.IP" or "chunked(strict=...)"
    messages: tuple[str, ...]


def find_expected(
    tests: Mapping[str, str],
    failing: Iterable[str],
    *,
    sources: Iterable[str],
    known: Collection[str],
    gold_patch: str,
    statement: str,
) -> Expected:
    """Return the names and messages that the failing tests use and that `statement` does not contain.

    Args:
        tests: path -> text of the changed tests after the fix.
        failing: ids of the tests that the fix makes pass.
        sources: texts of the changed source after the fix.
        known: every word in the source and the tests before the fix.
    Raises:
        CommitRejected: the tests use a private name that only the fix defines: no agent can solve that.
    """
    new = {name for text in sources for name in defined_names(text)} - set(known) - words([statement])
    added = "\n".join(line[1:] for line in gold_patch.splitlines() if line.startswith("+"))
    names: dict[str, None] = {}
    messages: dict[str, None] = {}
    for node in _relevant(tests, failing):
        for name, shown in _uses(node):
            if name in new and name.startswith("_") and not name.endswith("__"):
                raise CommitRejected(Reason.PRIVATE_NAMES, name)
            if name in new:
                names.setdefault(shown)
        for text, is_pattern in _texts(node):
            is_new = is_pattern or (text in added and not words([text]) <= set(known))
            if is_new and text not in statement:
                messages.setdefault(text)
    return Expected(names=tuple(names)[:_SHOWN_ITEMS], messages=tuple(messages)[:_SHOWN_ITEMS])


def describe(expected: Expected) -> str:
    """Return the last section of a statement; empty where nothing is expected."""
    parts: list[str] = []
    if expected.names:
        parts.append("Expected interface:\n\n" + "\n".join(f"- `{name}`" for name in expected.names))
    if expected.messages:
        parts.append("Expected messages:\n\n" + "\n".join(f"- {text}" for text in expected.messages))
    return "\n\n".join(parts)


def _relevant(tests: Mapping[str, str], failing: Iterable[str]) -> Iterator[ast.AST]:
    """Yield the failing tests, and the imports, helpers and fixtures of their files."""
    by_file: dict[str, set[str]] = {}
    for test in failing:
        path, _, rest = test.partition("::")
        by_file.setdefault(path, set()).add(rest.partition("[")[0].rpartition("::")[2])
    for path, names in by_file.items():
        if path in tests:
            yield from _without_other_tests(parse(tests[path]), names)


def _without_other_tests(node: ast.AST, names: set[str]) -> Iterator[ast.AST]:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.ClassDef):
            yield from _without_other_tests(child, names)
        elif not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef) or (
            child.name in names or not child.name.startswith("test")
        ):
            yield child


def _uses(root: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield each name that the test takes from elsewhere, and the way it uses it."""
    nodes = list(ast.walk(root))
    own = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    own |= {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.name for node in nodes if isinstance(node, ast.FunctionDef | ast.ClassDef)}
    for node in nodes:
        if isinstance(node, ast.ImportFrom):
            origin = "." * node.level + (node.module or "")
            yield from ((alias.name, f"{origin}.{alias.name}") for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from ((part, alias.name) for alias in node.names for part in alias.name.split("."))
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Load):
            yield node.attr, _dotted(node)
        elif isinstance(node, ast.Call):
            called = _dotted(node.func)
            yield from ((k.arg, f"{called}({k.arg}=...)") for k in node.keywords if k.arg)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load) and node.id not in own:
            yield node.id, node.id


def _dotted(node: ast.expr) -> str:
    """Return the dotted name of an expression; of `f(x).name` only `name`."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    if isinstance(node, ast.Name):
        parts.append(node.id)
    return ".".join(reversed(parts)) or "..."


def _texts(root: ast.AST) -> Iterator[tuple[str, bool]]:
    """Yield strings of several words, and whether an error's message must match them (`match=`)."""
    patterns = {
        id(node.value) for node in ast.walk(root) if isinstance(node, ast.keyword) and node.arg == "match"
    }
    for node in ast.walk(root):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            text = " ".join(node.value.split())
            if " " in text and len(text) <= _SHOWN_CHARS:
                yield text, id(node) in patterns
