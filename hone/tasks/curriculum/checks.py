"""The tests of a generated repository, and the calls of its functions that say what they expect."""

from __future__ import annotations

import builtins
import copy
import io
import math
import re
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from hone.tasks.curriculum.layout import Fault, FaultyModule, Repository

TEST_CLASS = "Tests"
FAILED = math.nan  # result of a call that raised; equal to nothing, since its test cannot pass


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
    """Return the result of `module.function` for each case; FAILED where it or the import raises."""
    with redirect_stdout(io.StringIO()):
        try:
            called = load(modules, module)[function]
        except Exception:
            return [FAILED for _ in cases]
        return [_result(called, case) for case in cases]


def _result(called: Any, case: tuple[Any, ...]) -> Any:
    try:
        return called(*copy.deepcopy(case))
    except Exception:
        return FAILED


class Case(NamedTuple):
    """One call of the function under test and its expected value."""

    arguments: tuple[Any, ...]
    value: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class FaultCases:
    """The calls of one faulty function that its hidden tests make."""

    fault: Fault
    failing: tuple[Case, ...]  # with the bug
    passing: tuple[Case, ...]  # with the bug, too

    @property
    def all(self) -> tuple[Case, ...]:
        return (*self.failing, *self.passing)

    def hold(self, modules: Mapping[str, str]) -> bool:
        """Return whether every call has its expected value in `modules`."""
        arguments = [case.arguments for case in self.all]
        found = results(modules, self.fault.module, self.fault.function, arguments)
        return found == [case.value for case in self.all]


def fault_cases(fault: Fault, repository: Repository) -> FaultCases:
    """Return the cases of a fault's shape; those for which the right function raises are left out."""
    arguments = fault.bug.shape.cases
    wanted = results(repository.fixed, fault.module, fault.function, arguments)
    buggy = results(repository.buggy, fault.module, fault.function, arguments)
    failing: list[Case] = []
    passing: list[Case] = []
    for call, right, found in zip(arguments, wanted, buggy, strict=True):
        if right == right:  # false for FAILED
            (passing if found == right else failing).append(Case(call, right))
    return FaultCases(fault=fault, failing=tuple(failing), passing=tuple(passing))


def hidden_tests(tested: Sequence[FaultCases]) -> str:
    """Return one test per case, named `test_<function>_<number>` from 1."""
    imports = [f"from {cases.fault.module} import {cases.fault.function}" for cases in tested]
    checks = {
        f"{cases.fault.function}_{number}": _check(cases.fault.function, case)
        for cases in tested
        for number, case in enumerate(cases.all, start=1)
    }
    return _test_module(imports, checks)


def visible_tests(module: FaultyModule, modules: Mapping[str, str], tested: Sequence[FaultCases]) -> str:
    """Return tests that pass with and without the bugs: of unaffected cases, and of the helper.

    `tested` has the cases of the module's faults.
    """
    checks = {
        cases.fault.function: _check(cases.fault.function, cases.passing[0])
        if cases.passing
        else f"self.assertTrue(callable({cases.fault.function}))"
        for cases in tested
    }
    if module.helper and module.helper.arguments:
        name, arguments = module.helper.name, module.helper.arguments
        (value,) = results(modules, module.name, name, [arguments])
        checks[name] = _check(name, Case(arguments, value))
    return _test_module([f"from {module.name} import {', '.join(sorted(checks))}"], checks)


def _test_module(imports: Sequence[str], checks: Mapping[str, str]) -> str:
    """Return a module of unittest's with one statement for each test: name -> statement."""
    tests = [f"    def test_{name}(self):\n        {check}\n" for name, check in checks.items()]
    head = ["from unittest import TestCase", "", *imports, "", "", f"class {TEST_CLASS}(TestCase):", ""]
    return "\n".join(head) + "\n".join(tests)


def test_id(path: str, name: str) -> str:
    return f"{path}::{TEST_CLASS}::test_{name}"


def test_ids(path: str, text: str) -> list[str]:
    """Return the ids of the tests in a generated file, in its order."""
    return [test_id(path, name) for name in re.findall(r"^    def test_(\w+)\(", text, re.MULTILINE)]


def _check(function: str, case: Case) -> str:
    return f"self.assertEqual({function}({', '.join(map(repr, case.arguments))}), {case.value!r})"
