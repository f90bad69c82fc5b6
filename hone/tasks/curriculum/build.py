"""From a bug to a task: repository, history, tests, gold patch and the edits one might try."""

from __future__ import annotations

import difflib
import random
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hone.tasks.curriculum.behaviour import results
from hone.tasks.curriculum.bug import Bug, Draw
from hone.tasks.curriculum.edit import Edit
from hone.tasks.curriculum.layout import IGNORED, Layout, edit, place
from hone.types import Checks, Commit, Environment, Task

SOURCE = "curriculum"
LONGEST_MODULE = 12  # lines; what a very small model can read
HIDDEN = "tests/test_hidden.py"

ISSUES = (
    "{module}.py has a bug in {function}: {actual}, but {expected}.",
    "The function {function} in {module}.py is wrong. Now {actual}. Instead {expected}.",
    "In {module}.py, {function} does not work: {actual}. I think {expected}.",
    "Please fix {function} in {module}.py: {expected}. At the moment {actual}.",
)


class Rejected(Exception):
    """This draw makes no sound task; draw again."""


def build(family: Callable[[Draw], Bug], source: random.Random, task_id: str, split: str) -> Task:
    """One task of `family`. Raises Rejected when the draw is ambiguous, too long or too easily fixed."""
    draw = Draw(source)
    bug = family(draw)
    layout = place(bug, draw)
    text = layout.modules[layout.module]
    if text.count("\n") > LONGEST_MODULE:
        raise Rejected("the module is too long")
    right = edit(bug, layout, bug.right)
    if bug.bad and text.splitlines()[right.line - 1].count(bug.bad) != 1:
        raise Rejected("the text to replace is not unique on its line")
    path = f"{layout.module}.py"
    fixed = right.apply(text)
    wanted, failing, passing = _split_cases(bug, layout, fixed)
    wrong = _wrong_edits(bug, layout, right, wanted, draw)
    visible = _visible_tests(bug, layout, wanted, passing)
    hidden_cases = [*failing, *passing]
    visible_path = f"tests/test_{layout.module}.py"
    hidden = [f"{HIDDEN}::test_{bug.function}_{i + 1}" for i in range(len(hidden_cases))]
    tests = {
        "tests/__init__.py": "",
        visible_path: visible,
        HIDDEN: _test_file(
            layout.module, bug.function, [(bug.shape.cases[i], wanted[i]) for i in hidden_cases]
        ),
    }
    fixes = [{"command": right.command(path), "right": True}]
    fixes += [{"command": candidate.command(path), "right": False} for candidate in wrong]
    return Task(
        id=task_id,
        problem=_issue(bug, layout.module, draw),
        environment=Environment(image="host", history=_history(bug, layout, {visible_path: visible})),
        checks=Checks(
            fail_to_pass=tuple(hidden[: len(failing)]),
            pass_to_pass=(*hidden[len(failing) :], *_test_ids(visible_path, visible)),
            test_files=tests,
            gold_patch=unified_diff(path, text, fixed),
        ),
        source=SOURCE,
        metadata={
            "split": split,
            "family": family.__name__,
            "names": [layout.module, bug.function, *bug.shape.parameters],
            "fixes": fixes,
        },
    )


def _split_cases(bug: Bug, layout: Layout, fixed: str) -> tuple[list[Any], list[int], list[int]]:
    """What the fixed function returns for each case, and which cases fail and pass while the bug is there."""
    modules = {**layout.modules, layout.module: fixed}
    wanted = results(modules, layout.module, bug.function, bug.shape.cases)
    buggy = results(layout.modules, layout.module, bug.function, bug.shape.cases)
    sound = [
        i for i, value in enumerate(wanted) if value == value
    ]  # a case on which the right code raises is none
    failing = [i for i in sound if buggy[i] != wanted[i]]
    if not failing:
        raise Rejected("no case shows the bug")
    return wanted, failing, [i for i in sound if i not in failing]


def _wrong_edits(bug: Bug, layout: Layout, right: Edit, wanted: list[Any], draw: Draw) -> list[Edit]:
    """At least three plausible edits, each seen to fail a hidden test; the most tempting first."""
    text = layout.modules[layout.module]
    last = text.count("\n")
    elsewhere = [
        n
        for n in range(1, last + 1)
        if n != right.line and (not bug.bad or bug.bad in text.splitlines()[n - 1])
    ]
    nearby = [n for n in (right.line + 1, right.line - 1) if 1 <= n <= last]
    line = draw.pick(elsewhere if elsewhere and bug.bad else nearby)
    candidates = [edit(bug, layout, wrong) for wrong in bug.wrong if wrong != bug.bad] + [
        edit(bug, layout, bug.right, line)
    ]
    wrong = [candidate for candidate in candidates if not _passes(candidate.apply(text), bug, layout, wanted)]
    if len(wrong) < 3:
        raise Rejected("too few wrong edits")
    return wrong


def _passes(source: str, bug: Bug, layout: Layout, wanted: Sequence[Any]) -> bool:
    found = results({**layout.modules, layout.module: source}, layout.module, bug.function, bug.shape.cases)
    return all(f == w for f, w in zip(found, wanted, strict=True) if w == w)


def _issue(bug: Bug, module: str, draw: Draw) -> str:
    return draw.pick(ISSUES).format(
        module=module, function=bug.function, actual=bug.actual, expected=bug.expected
    )


def _test_file(module: str, function: str, cases: Sequence[tuple[tuple[Any, ...], Any]]) -> str:
    parts = [f"from {module} import {function}\n"]
    for i, (arguments, value) in enumerate(cases, start=1):
        call = f"{function}({', '.join(map(repr, arguments))})"
        parts.append(f"\n\ndef test_{function}_{i}():\n    assert {call} == {value!r}\n")
    return "".join(parts)


def _visible_tests(bug: Bug, layout: Layout, wanted: list[Any], passing: list[int]) -> str:
    """Tests that pass with and without the bug: one lucky case, and the helper beside it."""
    if passing:
        i = passing[0]
        text = _test_file(layout.module, bug.function, [(bug.shape.cases[i], wanted[i])])
    else:
        text = f"import {layout.module}\n\n\ndef test_{bug.function}():\n    assert callable({layout.module}.{bug.function})\n"
    if layout.helper:
        name, arguments = layout.helper
        value = results(layout.modules, layout.module, name, [arguments])[0]
        call = f"{name}({', '.join(map(repr, arguments))})"
        text = f"from {layout.module} import {name}\n" + text
        text += f"\n\ndef test_{name}():\n    assert {call} == {value!r}\n"
    return text


def _test_ids(path: str, text: str) -> list[str]:
    return [
        f"{path}::{line[4 : line.index('(')]}" for line in text.splitlines() if line.startswith("def test_")
    ]


def _history(bug: Bug, layout: Layout, visible: Mapping[str, str]) -> tuple[Commit, ...]:
    """The repository grows by a few commits; none of them ever held the fix."""
    path = f"{layout.module}.py"
    others = {f"{name}.py": text for name, text in layout.modules.items() if name != layout.module}
    commits = [
        Commit(message="Start", files={"README.md": f"# {layout.module}\n", ".gitignore": IGNORED, **others})
    ]
    if layout.before:
        commits.append(Commit(message=f"Add {path}", files={path: layout.before}))
    commits.append(
        Commit(message=f"Add {bug.function} to {path}", files={path: layout.modules[layout.module]})
    )
    commits.append(Commit(message="Add tests", files={"tests/__init__.py": "", **visible}))
    return tuple(commits)


def unified_diff(path: str, before: str, after: str) -> str:
    lines = difflib.unified_diff(
        before.splitlines(keepends=True), after.splitlines(keepends=True), f"a/{path}", f"b/{path}"
    )
    return f"diff --git a/{path} b/{path}\n" + "".join(lines)
