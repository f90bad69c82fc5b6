"""The test files of a generated task, and the results of its functions that they expect."""

from __future__ import annotations

import builtins
import copy
import io
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from types import SimpleNamespace
from typing import Any, NamedTuple

from hone.tasks.curriculum.layout import Layout


class Failed:
    """The result of a call that raised; equal to nothing, since its test cannot pass."""

    def __eq__(self, other: object) -> bool:
        return False

    __hash__ = None  # type: ignore[assignment]


def load(modules: Mapping[str, str], name: str) -> dict[str, Any]:
    """Return the namespace of module `name`; its imports come from `modules` (name -> source)."""

    def import_(wanted: str, *_: object) -> SimpleNamespace:
        return SimpleNamespace(**load(modules, wanted))

    namespace: dict[str, Any] = {"__builtins__": {**vars(builtins), "__import__": import_}, "__name__": name}
    exec(compile(modules[name], f"{name}.py", "exec"), namespace)  # noqa: S102 - the curriculum's own text
    return namespace


def results(
    modules: Mapping[str, str], module: str, function: str, cases: Sequence[tuple[Any, ...]]
) -> list[Any]:
    """Return the result of `module.function` for each case; `Failed()` where it or the import raises."""
    with redirect_stdout(io.StringIO()):
        try:
            called = load(modules, module)[function]
        except Exception:
            return [Failed() for _ in cases]
        return [_result(called, case) for case in cases]


def _result(called: Any, case: tuple[Any, ...]) -> Any:
    try:
        return called(*copy.deepcopy(case))
    except Exception:
        return Failed()


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
