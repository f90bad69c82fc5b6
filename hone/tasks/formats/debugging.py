"""Rows of debugging tasks: a few files with a bug and `test.py`, which the agent may run.

`extra_info` has `files` (a list of `path` and `content`), `entrypoint` and `task_name`. It may be JSON in a
string or be called `entry`, or its fields may be columns of the row. No solution is published.
"""

from __future__ import annotations

import hashlib
import json
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.formats.pytest_ids import test_names
from hone.tasks.rows import Row, parse, record, text
from hone.types import Checks, Commit, Environment, Task

TESTS = "test.py"
RULE = "collected"  # the score is the share of collected tests that pass; a missing test fails
_NAMES = ("task_name", "id", "name", "task_id")
_ENTRYPOINT = f"python -m pytest --tb=short -sq {TESTS}"


def to_task(row: Row) -> Task:
    """Return the task of a row. Raises TaskError for a row without files or tests, or with only tests."""
    fields = _fields(row)
    files = _files(fields)
    if TESTS not in files:
        raise TaskError(f"its files have no {TESTS}")
    if len(files) == 1:
        raise TaskError(f"there is no file besides {TESTS}, so there is nothing to fix")
    names = test_names(files[TESTS])
    if not names:
        raise TaskError(f"its {TESTS} has no test function")
    return Task(
        id=next((text(fields, name) for name in _NAMES if fields.get(name)), "") or _hashed(files),
        problem=text(fields, "problem_statement", "") or _asked(fields),
        environment=Environment(image="host", history=(Commit(message="start", files=files),)),
        checks=Checks(
            fail_to_pass=tuple(f"{TESTS}::{name}" for name in names),
            pass_to_pass=(),
            test_files={TESTS: files[TESTS]},
            gold_patch="",
            rule=RULE,
        ),
        source="debugging",
    )


def to_row(task: Task) -> Row:
    """Return the row of a task. Raises TaskError when its tests are not all in `test.py`."""
    if set(task.checks.test_files) != {TESTS} or not task.environment.history:
        raise TaskError(f"task {task.id} is not of a few files with tests in {TESTS}")
    files: dict[str, str | None] = {}
    for commit in task.environment.history:
        files.update(commit.files)
    files.update(task.checks.test_files)
    return {
        "task_id": task.id,
        "problem_statement": task.problem,
        "prompt": json.dumps([{"role": "user", "content": task.problem}]),
        "extra_info": {
            "entrypoint": _ENTRYPOINT,
            "files": [{"content": text, "path": path} for path, text in files.items() if text is not None],
            "task_name": task.id,
        },
    }


def _fields(row: Row) -> Row:
    """Return the columns of `entry`, the row and `extra_info`, later ones first; None overrides nothing."""
    layers = [
        record(row, "entry") if row.get("entry") else {},
        row,
        record(row, "extra_info") if row.get("extra_info") else {},
    ]
    return {name: value for layer in layers for name, value in layer.items() if value is not None}


def _files(fields: Row) -> dict[str, str]:
    listed: Any = fields.get("files")
    if isinstance(listed, str):
        listed = parse(listed)
    if not isinstance(listed, list) or not all(isinstance(item, dict) for item in listed):
        raise TaskError("`files` must be a list of `path` and `content`")
    files = {text(item, "path"): text(item, "content", "") for item in listed}
    if len(files) != len(listed):
        raise TaskError("`files` names a path twice")
    return files


def _asked(fields: Row) -> str:
    """Return the last user message in `prompt`, where there is no `problem_statement`."""
    prompt: Any = fields.get("prompt")
    if isinstance(prompt, str) and prompt.lstrip().startswith("["):
        prompt = parse(prompt)
    if isinstance(prompt, list):
        said = [item for item in prompt if isinstance(item, dict) and item.get("role") == "user"]
        prompt = text(said[-1], "content", "") if said else ""
    if not isinstance(prompt, str) or not prompt:
        raise TaskError("`problem_statement` is missing")
    return prompt


def _hashed(files: dict[str, str]) -> str:
    content = "\0".join(part for pair in sorted(files.items()) for part in pair)
    return f"debugging-{hashlib.sha256(content.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"
