"""From a bug to a task: repository, history, tests, gold patch and candidate edits."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from hone.tasks.curriculum.bug import Bug, Draw, Edit
from hone.tasks.curriculum.layout import Layout, edit, place
from hone.tasks.curriculum.suite import Case, hidden_tests, results, test_ids, visible_tests
from hone.tasks.diffs import file_diff
from hone.types import Checks, Commit, Environment, Task

SOURCE = "curriculum"
LONGEST_MODULE = 12  # lines that a very small model can read
FEWEST_WRONG_EDITS = 3
HIDDEN_PATH = "tests/test_hidden.py"

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
    return Task(
        id=task_id,
        problem=_issue(bug, layout.module, draw),
        environment=Environment(image="host", history=_history(bug, layout, visible_path, visible)),
        checks=Checks(
            fail_to_pass=tuple(hidden_ids[: len(cases.failing)]),
            pass_to_pass=(*hidden_ids[len(cases.failing) :], *test_ids(visible_path, visible)),
            test_files={"tests/__init__.py": "", visible_path: visible, HIDDEN_PATH: hidden},
            gold_patch=file_diff(path, text, layout.fixed),
        ),
        source=SOURCE,
        metadata={
            "split": split,
            "family": family.__name__,
            "names": [layout.module, bug.shape.function, *bug.shape.parameters],
            "fixes": fixes,
        },
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
