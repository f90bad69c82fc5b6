"""The tests of a Python file, without running it."""

from __future__ import annotations

import ast

from hone.tasks.errors import TaskError


def test_names(source: str) -> list[str]:
    """Return pytest's names of the tests of a file: `test_a`, `TestB::test_c`, without parameters.

    Inherited and generated tests are not included. Raises TaskError where the file is not Python.
    """
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise TaskError(f"its tests are not Python: {error}") from None
    names: dict[str, ast.stmt] = {}  # a later definition replaces an earlier one
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.pop(node.name, None)
            names[node.name] = node
    classes = [node for node in names.values() if isinstance(node, ast.ClassDef) and _is_suite(node)]
    methods = [f"{node.name}::{name}" for node in classes for name in _functions(node.body)]
    return [*_functions(list(names.values())), *methods]


test_names.__test__ = False  # type: ignore[attr-defined]  # pytest must not collect it


def _is_suite(node: ast.ClassDef) -> bool:
    """Return whether pytest collects tests from a class."""
    if any(_last_name(base).endswith("TestCase") for base in node.bases):
        return True
    made_by_hand = any(isinstance(part, ast.FunctionDef) and part.name == "__init__" for part in node.body)
    return node.name.startswith("Test") and not made_by_hand


def _functions(body: list[ast.stmt]) -> list[str]:
    kinds = (ast.FunctionDef, ast.AsyncFunctionDef)
    found = [
        node.name
        for node in body
        if isinstance(node, kinds)
        and node.name.startswith("test")
        and not any(_last_name(mark) in ("fixture", "property") for mark in node.decorator_list)
    ]
    return list(dict.fromkeys(found))


def _last_name(node: ast.expr) -> str:
    """Return the last name of an expression: `fixture` of `@pytest.fixture(scope="module")`."""
    if isinstance(node, ast.Call):
        node = node.func
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
