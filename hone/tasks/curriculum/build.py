"""From a bug to a task: the modules around it, history, tests, gold patch and candidate edits."""

from __future__ import annotations

import builtins
import copy
import io
import math
import random
from collections.abc import Callable, Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

from hone.tasks.controls import best, propose
from hone.tasks.curriculum.bug import MARK, Bug, Draw, Edit
from hone.tasks.diffs import file_diff
from hone.types import Checks, Commit, Control, Environment, Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Helper:
    """A correct function beside the buggy one."""

    name: str
    source: str
    arguments: tuple[int, ...] = ()  # of a test call; empty: it is not tested


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """A repository's modules around one bug."""

    module: str  # the module with the bug
    modules: Mapping[str, str]  # name -> source with the bug
    fixed: str  # the source of `module` without the bug
    before: str  # the module's source before the buggy function was added; may be empty
    line: int  # of the bug, from 1; where a line is missing, of the line before it
    indent: str  # of the missing line; otherwise empty
    helper: Helper | None


def place(bug: Bug, draw: Draw) -> Layout:
    """Choose the code above and below the buggy function."""
    module = draw.name()
    modules, imports = _other_modules(draw)
    helper, imports = _helper(bug, draw, imports)
    template = bug.shape.code.splitlines()
    marked = next(i for i, line in enumerate(template) if MARK in line)
    # A bug is never on a module's first line, so that a wrong edit can be one line early.
    head = [f'"""Work with {draw.name()} and {draw.name()}."""\n'] if not marked or draw.chance(0.3) else []
    head += [f"from {other} import {name}\n" for other, name in imports.items()]
    line_missing = not bug.bad
    lines = template[:marked] + template[marked + 1 :] if line_missing else template
    code = "\n".join(lines).replace(MARK, bug.bad) + "\n"
    above, below = list(head), []
    if helper:
        (above if draw.chance(0.6) else below).append(helper.source)
    modules[module] = "\n".join([*above, code, *below])
    fixed = bug.shape.code.replace(MARK, bug.right) + "\n"
    first_line = sum(block.count("\n") + 1 for block in above) + 1
    return Layout(
        module=module,
        modules=modules,
        fixed="\n".join([*above, fixed, *below]),
        before="\n".join([*head, helper.source]) if helper else "",
        line=first_line + marked - line_missing,
        indent=template[marked][: template[marked].index(MARK)] if line_missing else "",
        helper=helper,
    )


def edit(bug: Bug, layout: Layout, new: str | None = None, *, line: int | None = None) -> Edit:
    """Return the edit that fixes the bug, or a wrong one with another replacement or line."""
    pattern, replacement = bug.fix or (bug.bad, bug.right)
    new = replacement if new is None else new
    return Edit(line=line or layout.line, old=pattern, new=layout.indent + new)


def _other_modules(draw: Draw) -> tuple[dict[str, str], dict[str, str]]:
    """Return the other modules by name, and the function that each exports."""
    modules: dict[str, str] = {}
    functions: dict[str, str] = {}
    for _ in range(draw.random.choice((0, 0, 0, 0, 0, 0, 0, 1, 1, 2))):
        module, name, parameter = draw.names(3)
        modules[module] = f"def {name}({parameter}):\n    return {_body(parameter, draw)}\n"
        functions[module] = name
    return modules, functions


def _helper(bug: Bug, draw: Draw, functions: Mapping[str, str]) -> tuple[Helper | None, dict[str, str]]:
    """Return a function beside the buggy one or None, and the imports that it uses."""
    if bug.helper:
        return Helper(name=bug.helper.split("(")[0].removeprefix("def "), source=bug.helper + "\n"), {}
    if bug.shape.code.count("\n") > 3 or draw.chance(0.35):
        return None, {}
    name, x, y = draw.names(3)
    if functions:
        other, function = draw.pick(*list(functions.items()))
        source = f"def {name}({x}):\n    return {function}({x})\n"
        return Helper(name=name, source=source, arguments=(draw.digits(1)[0],)), {other: function}
    if draw.chance(0.3):
        source = f"def {name}({x}, {y}):\n    return {x} {draw.pick(*'+-*')} {y}\n"
        return Helper(name=name, source=source, arguments=tuple(draw.digits(2))), {}
    source = f"def {name}({x}):\n    return {_body(x, draw)}\n"
    return Helper(name=name, source=source, arguments=(draw.digits(1)[0],)), {}


def _body(x: str, draw: Draw) -> str:
    k = draw.digits(1)[0]
    return draw.pick(x, f"{x} + {k}", f"{x} * {k}", f"{x} - 1", f"[{x}]", f"-{x}")


SOURCE = "curriculum"
LONGEST_MODULE = 12  # lines that a very small model can read
FEWEST_WRONG_EDITS = 3
HIDDEN_PATH = "tests/test_hidden.py"
FAILED = math.nan  # result of a call that raised; equal to nothing, since its test cannot pass

ISSUES = (
    "{module}.py has a bug in {function}: {actual}, but {expected}.",
    "The function {function} in {module}.py is wrong. Now {actual}. Instead {expected}.",
    "In {module}.py, {function} does not work: {actual}. I think {expected}.",
    "Please fix {function} in {module}.py: {expected}. At the moment {actual}.",
)


class Rejected(Exception):
    """This draw makes no valid task; draw again."""


class _Cases(NamedTuple):
    """Calls of the right function, by whether the buggy one differs."""

    failing: list[Case]
    passing: list[Case]


def build(
    family: Callable[[Draw], Bug], source: random.Random, task_id: str, split: str, variety: int
) -> Task:
    """Return one task of `family`. Raises Rejected when the draw is ambiguous, too long or too easily fixed.

    `metadata` has split, family, names [module, function, *parameters], and `fixes` for demonstrations: the
    right edit first, then at least three that fail a hidden test, the most plausible first. Each has its
    shell `command`, whether it is `right`, and the same edit as `path`, `line` and resulting `code`. The
    agent sees no metadata.
    """
    draw = Draw(source, variety)
    bug = family(draw)
    layout = place(bug, draw)
    text = layout.modules[layout.module]
    if text.count("\n") > LONGEST_MODULE:
        raise Rejected("the module is too long")
    right = edit(bug, layout)
    if right.apply(text) != layout.fixed:
        raise Rejected("the edit changes another place than the bug's")
    cases = _cases(bug, layout)
    wrong = _wrong_edits(bug, layout, cases)
    visible = visible_tests(layout, bug.shape.function, cases.passing[0] if cases.passing else None)
    hidden = hidden_tests(layout.module, bug.shape.function, [*cases.failing, *cases.passing])
    path, visible_path = f"{layout.module}.py", f"tests/test_{layout.module}.py"
    hidden_ids = test_ids(HIDDEN_PATH, hidden)
    fixes = [_fix(candidate, path, text, is_right=candidate is right) for candidate in (right, *wrong)]
    test_files = {"tests/__init__.py": "", visible_path: visible, HIDDEN_PATH: hidden}
    tests = [*hidden_ids, *test_ids(visible_path, visible)]
    return Task(
        id=task_id,
        problem=_issue(bug, layout.module, draw),
        environment=Environment(image="host", history=_history(bug, layout, visible_path, visible)),
        checks=Checks(
            fail_to_pass=tuple(hidden_ids[: len(cases.failing)]),
            pass_to_pass=tuple(tests[len(cases.failing) :]),
            test_files=test_files,
            gold_patch=file_diff(path, text, layout.fixed),
            controls=_controls(test_files, tests),
            excused=(),
        ),
        source=SOURCE,
        metadata={
            "split": split,
            "family": family.__name__,
            "names": [layout.module, bug.shape.function, *bug.shape.parameters],
            "fixes": fixes,
        },
    )


def _controls(test_files: Mapping[str, str], tests: Sequence[str]) -> tuple[Control, ...]:
    """Return controls of tests that are one assertion each: any change of its expectation makes it fail."""
    return tuple(
        function.control(edit, function.tests)
        for function in propose(test_files, frozenset(tests))
        for edit in best(function.edits)
    )


def _fix(candidate: Edit, path: str, text: str, *, is_right: bool) -> dict[str, object]:
    return {
        "command": candidate.command(path),
        "right": is_right,
        "path": path,
        "line": candidate.line,
        "code": candidate.replacement(text),
    }


def _cases(bug: Bug, layout: Layout) -> _Cases:
    modules = {**layout.modules, layout.module: layout.fixed}
    wanted = results(modules, layout.module, bug.shape.function, bug.shape.cases)
    buggy = results(layout.modules, layout.module, bug.shape.function, bug.shape.cases)
    cases = _Cases([], [])
    for arguments, right, found in zip(bug.shape.cases, wanted, buggy, strict=True):
        if right == right:  # false where the right function raises: such a case is not tested
            (cases.passing if found == right else cases.failing).append(Case(arguments, right))
    if not cases.failing:
        raise Rejected("no case shows the bug")
    return cases


def _wrong_edits(bug: Bug, layout: Layout, cases: _Cases) -> list[Edit]:
    """Return plausible edits that fail a hidden test: the right one a line early, and wrong ones in place."""
    text = layout.modules[layout.module]
    early = edit(bug, layout, line=layout.line - 1)
    candidates = [early, *(edit(bug, layout, wrong) for wrong in bug.wrong if wrong != bug.bad)]
    checks = [*cases.failing, *cases.passing]
    wrong = [candidate for candidate in candidates if not _passes(candidate.apply(text), bug, layout, checks)]
    if len(wrong) < FEWEST_WRONG_EDITS:
        raise Rejected("too few wrong edits")
    return wrong


def _passes(source: str, bug: Bug, layout: Layout, cases: Sequence[Case]) -> bool:
    modules = {**layout.modules, layout.module: source}
    found: list[Any] = results(modules, layout.module, bug.shape.function, [case.arguments for case in cases])
    return found == [case.value for case in cases]


def _issue(bug: Bug, module: str, draw: Draw) -> str:
    issue = draw.pick(*ISSUES)
    return issue.format(module=module, function=bug.shape.function, actual=bug.actual, expected=bug.expected)


def _history(bug: Bug, layout: Layout, visible_path: str, visible: str) -> tuple[Commit, ...]:
    """Return a few commits, none of which contains the fix."""
    path = f"{layout.module}.py"
    start = {"README.md": f"# {layout.module}\n", ".gitignore": "__pycache__/\n.pytest_cache/\n"}
    others = {f"{name}.py": text for name, text in layout.modules.items() if name != layout.module}
    commits = [
        Commit(message="Start", files={**start, **others}),
        Commit(message=f"Add {path}", files={path: layout.before}),
        Commit(message=f"Add {bug.shape.function}", files={path: layout.modules[layout.module]}),
        Commit(message="Add tests", files={"tests/__init__.py": "", visible_path: visible}),
    ]
    return tuple(commits if layout.before else commits[:1] + commits[2:])


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
