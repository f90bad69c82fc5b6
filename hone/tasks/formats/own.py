"""Hone's own file format: one JSON object per line, one line per task, lossless both ways."""

from __future__ import annotations

import dataclasses
import json
import reprlib
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from hone.tasks.bundles import LOCAL, to_relative
from hone.tasks.errors import TaskError
from hone.types import Task
from hone.utils.files import replace_file
from hone.utils.text import digest


@cache
def _adapter() -> TypeAdapter[Task]:
    return TypeAdapter(Task)


_LATER = ("python", "build")  # fields of Environment


def to_dict(task: Task) -> dict[str, Any]:
    """Return the task as JSON values, if its metadata are JSON values; `to_line` checks that.

    Only a Harbor task has `checks.folder`.
    """
    data = _plain(task)
    if not data["checks"]["folder"]:
        del data["checks"]["folder"]
    return data


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in cast(tuple[Any, ...], value)]
    return dict(value) if isinstance(value, Mapping) else value


def from_dict(data: Any) -> Task:
    """Return the task that `to_dict` wrote. Raises TaskError for missing, unknown or ill-typed fields."""
    try:
        return _adapter().validate_python(data)
    except ValidationError as error:
        first = error.errors(include_url=False)[0]
        where = ".".join(map(str, first["loc"])) or "the task"
        raise TaskError(f"`{where}` is wrong: {first['msg']}, got {reprlib.repr(first['input'])}") from None


def to_line(task: Task, folder: Path | None = None) -> str:
    """Return one line of JSON without its end. Raises TaskError when JSON would change the metadata.

    Args:
        folder: of the file that gets the line; a repository in it is named relative to it.
    """
    data = to_dict(task) if folder is None else to_relative(to_dict(task), folder)
    try:
        line = json.dumps(data, allow_nan=False)
        again = json.loads(line)
    except (TypeError, ValueError, RecursionError) as error:
        raise TaskError(f"task {task.id} cannot be written as JSON: {error}") from None
    if again != data:
        raise TaskError(
            f"task {task.id} cannot be written as JSON: its metadata hold tuples or keys that are not text"
        )
    return line


def save(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as JSONL, atomically. Raises TaskError when JSON would change the metadata of one.

    A repository in the folder of the file is named relative to it; see `hone.tasks.bundles`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(to_line(task, path.parent) + "\n" for task in tasks)


def content_hash(task: Task) -> str:
    """Return a hash of problem, environment and checks, whatever the task is called; 64 hex digits.

    What validation adds to the checks does not count: a task stays the same by it. Neither does the absence
    of what earlier versions of Hone did not know, nor where the repository of a commit lies.
    """
    data = to_dict(task)
    environment = {name: value for name, value in data["environment"].items() if value or name not in _LATER}
    if task.environment.commit and task.environment.image.startswith(LOCAL):
        environment["image"] = LOCAL
    checks = {name: value for name, value in data["checks"].items() if name not in ("controls", "excused")}
    return digest({"problem": data["problem"], "environment": environment, "checks": checks})
