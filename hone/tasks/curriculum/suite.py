"""The test files of a generated task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from hone.tasks.curriculum.behaviour import results
from hone.tasks.curriculum.layout import Layout


class Case(NamedTuple):
    """One call of the function under test and its expected value."""

    arguments: tuple[Any, ...]
    value: Any


def hidden_tests(module: str, function: str, cases: Sequence[Case]) -> str:
    """Return one test per case, named `test_<function>_<number>` from 1."""
    tests = [
        f"\n\ndef test_{function}_{i}():\n    {_check(function, case)}\n"
        for i, case in enumerate(cases, start=1)
    ]
    return f"from {module} import {function}\n" + "".join(tests)


def visible_tests(layout: Layout, function: str, lucky: Case | None) -> str:
    """Return tests that pass with and without the bug: of an unaffected case, and of the helper."""
    check = _check(function, lucky) if lucky else f"assert callable({function})"
    names, tests = [function], [f"\n\ndef test_{function}():\n    {check}\n"]
    if layout.helper and layout.helper.arguments:
        name, arguments = layout.helper.name, layout.helper.arguments
        (value,) = results(layout.modules, layout.module, name, [arguments])
        names.append(name)
        tests.append(f"\n\ndef test_{name}():\n    {_check(name, Case(arguments, value))}\n")
    return f"from {layout.module} import {', '.join(sorted(names))}\n" + "".join(tests)


def test_ids(path: str, text: str) -> list[str]:
    """Return the pytest ids of the tests in a generated file, in its order."""
    starts = "def test_"
    return [f"{path}::{line[4 : line.index('(')]}" for line in text.splitlines() if line.startswith(starts)]


def _check(function: str, case: Case) -> str:
    return f"assert {function}({', '.join(map(repr, case.arguments))}) == {case.value!r}"
