"""Rows of KodCode: a question, a solution and pytest tests that import it from `solution`.

Two variants are published: `question`, `solution`, `test`; and `instruction`, `response`, `test_code`.
"""

from __future__ import annotations

import difflib
import hashlib

from hone.tasks.diffs import git_lines
from hone.tasks.errors import TaskError
from hone.tasks.formats.pytest_ids import test_names
from hone.tasks.rows import Row, text
from hone.types import Checks, Commit, Environment, Task

SOLUTION, TESTS = "solution.py", "test_solution.py"
_EMPTY = '"""The functions that are asked for belong here."""\n'
_SHAPES = (("question", "solution", "test"), ("instruction", "response", "test_code"))


def to_task(row: Row) -> Task:
    """Return the task of a row. Raises TaskError when its tests cannot be parsed or it has none."""
    question, solution, tests = (text(row, column) for column in _columns(row))
    names = test_names(tests)
    if not names:
        raise TaskError("its tests have no test function")
    return Task(
        id=_id(row),
        problem=question,
        environment=Environment(image="host", history=(Commit(message="start", files={SOLUTION: _EMPTY}),)),
        checks=Checks(
            fail_to_pass=tuple(f"{TESTS}::{name}" for name in names),
            pass_to_pass=(),
            test_files={TESTS: tests},
            gold_patch=_diff(_EMPTY, solution),
        ),
        source="kodcode",
    )


def to_row(task: Task) -> Row:
    """Return the row of a task. Raises TaskError when it is not one solution file with its tests."""
    if set(task.checks.test_files) != {TESTS}:
        raise TaskError(f"task {task.id} is not of one file {SOLUTION} with tests in {TESTS}")
    return {
        "question_id": task.id,
        "question": task.problem,
        "solution": _after(task.checks.gold_patch),
        "test": task.checks.test_files[TESTS],
    }


def _columns(row: Row) -> tuple[str, str, str]:
    for shape in _SHAPES:
        if shape[0] in row:
            return shape
    raise TaskError("`question` is missing")


def _id(row: Row) -> str:
    if "question_id" in row:
        return text(row, "question_id")
    content = "\0".join(text(row, column) for column in _columns(row))  # prompt numbers are not unique
    return f"kodcode-{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _diff(before: str, after: str) -> str:
    """Return the patch with the whole file as one hunk."""
    old, new = git_lines(before), git_lines(after.rstrip("\n") + "\n")
    whole = len(old) + len(new)
    return "".join(difflib.unified_diff(old, new, f"a/{SOLUTION}", f"b/{SOLUTION}", n=whole))


def _after(patch: str) -> str:
    """Return the file after a patch of `_diff`."""
    return "".join(line[1:] for line in git_lines(patch)[3:] if line[0] in " +")
