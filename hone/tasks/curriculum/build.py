"""From bugs to a task: issue, history, tests, gold patch and candidate edits."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

from hone.tasks.controls import best, propose
from hone.tasks.curriculum.bug import Draw, Edit
from hone.tasks.curriculum.checks import (
    FaultCases,
    fault_cases,
    hidden_tests,
    test_id,
    test_ids,
    visible_tests,
)
from hone.tasks.curriculum.layout import Fault, FaultyLine, Place, Plan, Repository, lay_out
from hone.tasks.diffs import file_diff
from hone.types import Checks, Commit, Control, Environment, Task

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
ISSUES_WITHOUT_MODULE = (
    "There is a bug in {function}: {actual}, but {expected}.",
    "The function {function} is wrong. Now {actual}. Instead {expected}.",
    "Somehow {function} does not work: {actual}. I think {expected}.",
    "Please fix {function}: {expected}. At the moment {actual}.",
)


class Rejected(Exception):
    """This draw makes no valid task; draw again."""


class _Change(NamedTuple):
    """An edit of one module."""

    module: str
    edit: Edit

    def fix(self, buggy: Mapping[str, str], *, is_right: bool) -> dict[str, object]:
        """Return the change as an entry of `metadata["fixes"]`."""
        path = f"{self.module}.py"
        return {
            "command": self.edit.command(path),
            "right": is_right,
            "path": path,
            "line": self.edit.line,
            "code": self.edit.replacement(buggy[self.module]),
        }


class _Candidates(NamedTuple):
    """What an agent may do about one faulty line."""

    right: _Change
    wrong: list[_Change]  # the most plausible first


def build(plan: Plan, source: random.Random, task_id: str, split: str, variety: int) -> Task:
    """Return one task of `plan`. Raises Rejected when the draw is ambiguous, too long or too easily fixed.

    `metadata` has split, family, names [module, function, *parameters, of the first bug, then of others] and
    `fixes` for demonstrations. These are, for each faulty line in an order in which they can be edited, the
    right edit first, then at least three others, the most plausible first, each of which fails a hidden test
    even if all other lines are right. An edit has its shell `command`, whether it is `right`, and the same
    edit as `path`, `line` and resulting `code`. `search` lists the functions whose module the issue does
    not name, if any. The agent sees no metadata.
    """
    draw = Draw(source, variety)
    repository = lay_out(plan, draw)
    if any(text.count("\n") > LONGEST_MODULE for text in repository.buggy.values()):
        raise Rejected("a module is too long")
    tested = [fault_cases(fault, repository) for fault in repository.faults]
    if not all(cases.failing for cases in tested):
        raise Rejected("no case shows the bug")
    fixes = [
        change.fix(repository.buggy, is_right=change is candidates.right)
        for candidates in _candidates(repository, tested)
        for change in (candidates.right, *candidates.wrong)
    ]
    visible = {
        f"tests/test_{module.name}.py": visible_tests(
            module, repository.buggy, [cases for cases in tested if cases.fault.module == module.name]
        )
        for module in repository.faulty
    }
    issues, search = (ISSUES_WITHOUT_MODULE, repository.functions) if plan.look_alikes else (ISSUES, ())
    return Task(
        id=task_id,
        problem=_problem(repository, draw, issues),
        environment=Environment(image="host", history=_history(repository, visible)),
        checks=_checks(repository, tested, visible),
        source=SOURCE,
        metadata={
            "split": split,
            "family": plan.family,
            "names": list(repository.names),
            "fixes": fixes,
            **({"search": list(search)} if search else {}),
        },
    )


def _checks(repository: Repository, tested: Sequence[FaultCases], visible: Mapping[str, str]) -> Checks:
    hidden = hidden_tests(tested)
    test_files = {"tests/__init__.py": "", **visible, HIDDEN_PATH: hidden}
    tests = [test for path, text in {HIDDEN_PATH: hidden, **visible}.items() for test in test_ids(path, text)]
    failing = {
        test_id(HIDDEN_PATH, f"{cases.fault.function}_{number}")
        for cases in tested
        for number in range(1, len(cases.failing) + 1)
    }
    return Checks(
        fail_to_pass=tuple(test for test in tests if test in failing),
        pass_to_pass=tuple(test for test in tests if test not in failing),
        test_files=test_files,
        gold_patch="".join(
            file_diff(f"{module.name}.py", module.buggy, module.fixed) for module in repository.faulty
        ),
        controls=_controls(test_files, tests),
        excused=(),
        parser="unittest",  # starts several times faster than pytest
    )


def _controls(test_files: Mapping[str, str], tests: Sequence[str]) -> tuple[Control, ...]:
    """Return controls of tests that are one assertion each: any change of its expectation makes it fail."""
    return tuple(
        function.control(edit, function.tests)
        for function in propose(test_files, frozenset(tests))
        for edit in best(function.edits)
    )


def _candidates(repository: Repository, tested: Sequence[FaultCases]) -> Iterator[_Candidates]:
    """Yield the candidate edits of each faulty line.

    Raises Rejected where a part of the right edits passes the tests, or too few other edits fail them.
    """
    buggy = repository.buggy
    places = [(fault, line) for fault in repository.faults for line in fault.lines]
    right = [_change(fault, line) for fault, line in places]
    if _applied(buggy, right) != repository.fixed:
        raise Rejected("an edit changes another place than the bug's")

    def resolves(changes: Sequence[_Change]) -> bool:
        modules = _applied(buggy, changes)
        return all(cases.hold(modules) for cases in tested)

    for count in range(1, len(right)):
        if any(resolves(some) for some in itertools.combinations(right, count)):
            raise Rejected("a part of the fix passes the tests")
    for index, (fault, line) in enumerate(places):
        wrong = [
            change
            for change in _plausible(fault, line, repository.similar)
            if not resolves([*right[:index], change, *right[index + 1 :]])
        ]
        if len(wrong) < FEWEST_WRONG_EDITS:
            raise Rejected("too few wrong edits")
        yield _Candidates(right[index], wrong)


def _plausible(fault: Fault, line: FaultyLine, similar: Sequence[Place]) -> Iterator[_Change]:
    """Yield changes that an agent may take for the right one.

    The right edit in the first module that has a similar line, the right edit a line early, and other
    replacements in place.
    """
    edit = _change(fault, line).edit
    yield from (_Change(module, replace(edit, line=number)) for module, number in similar[:1])
    yield _Change(fault.module, replace(edit, line=line.number - 1))
    yield from (_change(fault, line, wrong) for wrong in fault.bug.wrong if wrong != fault.bug.bad)


def _change(fault: Fault, line: FaultyLine, new: str | None = None) -> _Change:
    """Return the right change of a line, or one with another replacement."""
    pattern, replacement = fault.bug.fix or (fault.bug.bad, fault.bug.right)
    new = replacement if new is None else new
    return _Change(fault.module, Edit(line=line.number, old=pattern, new=line.indent + new))


def _applied(modules: Mapping[str, str], changes: Sequence[_Change]) -> dict[str, str]:
    """Return the modules after the changes, one after the other."""
    made = dict(modules)
    for change in changes:
        made[change.module] = change.edit.apply(made[change.module])
    return made


def _problem(repository: Repository, draw: Draw, issues: Sequence[str]) -> str:
    """Return the issue: a line for each bug."""
    return "\n".join(
        draw.pick(*issues).format(
            module=fault.module,
            function=fault.function,
            actual=fault.bug.actual,
            expected=fault.bug.expected,
        )
        for fault in repository.faults
    )


def _history(repository: Repository, visible: Mapping[str, str]) -> tuple[Commit, ...]:
    """Return a few commits, none of which contains a fix."""
    start = {"README.md": f"# {repository.faulty[0].name}\n", ".gitignore": "__pycache__/\n.pytest_cache/\n"}
    correct = {f"{name}.py": text for name, text in repository.correct.items()}
    commits = [Commit(message="Start", files={**start, **correct})]
    for module in repository.faulty:
        path = f"{module.name}.py"
        if module.before:
            commits.append(Commit(message=f"Add {path}", files={path: module.before}))
        functions = " and ".join(fault.function for fault in module.faults)
        commits.append(Commit(message=f"Add {functions}", files={path: module.buggy}))
    commits.append(Commit(message="Add tests", files={"tests/__init__.py": "", **visible}))
    return tuple(commits)
