"""Hone's own file format: one JSON object per line, one line per task, lossless both ways."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import types
import typing
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.formats.rows import parse
from hone.types import Task
from hone.utils.files import replace_file

_MAX_TIMEOUT_S = 1e9


def to_dict(task: Task) -> dict[str, Any]:
    """Return the task as JSON values, if its metadata are JSON values; `to_line` checks that."""
    fields = {field.name: _plain(getattr(task, field.name)) for field in dataclasses.fields(Task)}
    return {**fields, "metadata": dict(task.metadata)}


def _plain(value: Any) -> Any:
    if dataclasses.is_dataclass(value):
        return {field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in typing.cast(tuple[Any, ...], value)]
    return dict(value) if isinstance(value, Mapping) else value


def from_dict(data: Any) -> Task:
    """Return the task that `to_dict` wrote. Raises TaskError for missing, unknown or ill-typed fields."""
    task: Task = _record(Task, data, "task")
    if not 0 < task.checks.timeout_s < _MAX_TIMEOUT_S:
        raise TaskError(f"`timeout_s` must be a positive number of seconds, got {task.checks.timeout_s!r}")
    return task


def _record(kind: type, data: Any, name: str) -> Any:
    """Return a dataclass with fields of the types that it declares."""
    if not isinstance(data, dict):
        raise TaskError(f"{name} must be an object, got {type(data).__name__}")
    fields = dataclasses.fields(kind)
    unknown = sorted(set(data) - {field.name for field in fields})
    required = [f.name for f in fields if f.default is f.default_factory is dataclasses.MISSING]
    missing = [field for field in required if field not in data]
    if unknown or missing:
        named = (("unknown", unknown), ("missing", missing))
        wrong = "; ".join(f"{what}: {', '.join(names)}" for what, names in named if names)
        raise TaskError(f"{name} has wrong fields ({wrong})")
    hints = _hints(kind)
    return kind(**{field: _value(hints[field], value, field) for field, value in data.items()})


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _value(hint: Any, value: Any, name: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if hint is Any or (origin is types.UnionType and value is None and types.NoneType in arguments):
        return value
    if origin is types.UnionType:
        return _value(arguments[0], value, name)
    if dataclasses.is_dataclass(hint):
        return _record(typing.cast(type, hint), value, name)
    if origin is tuple and isinstance(value, list):
        return tuple(_value(arguments[0], item, f"each of {name}") for item in value)
    if origin is Mapping and isinstance(value, dict) and all(isinstance(key, str) for key in value):
        return {key: _value(arguments[1], item, f"{name}[{key}]") for key, item in value.items()}
    if hint is float and isinstance(value, int | float) and not isinstance(value, bool):
        return float(value)
    if hint is str and isinstance(value, str):
        return value
    wanted = {tuple: "a list", Mapping: "an object", str: "a text", float: "a number"}
    raise TaskError(f"`{name}` must be {wanted[origin or hint]}, got {value!r}")


def to_line(task: Task) -> str:
    """Return one line of JSON without its end. Raises TaskError when JSON would change the metadata."""
    data = to_dict(task)
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


def from_line(line: str) -> Task:
    """Return the task of one line. Raises TaskError."""
    return from_dict(parse(line))


def save(tasks: Iterable[Task], path: Path) -> None:
    """Write tasks as JSONL, atomically. Raises TaskError when JSON would change the metadata of one."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with replace_file(path) as partial, partial.open("w", encoding="utf-8") as file:
        file.writelines(to_line(task) + "\n" for task in tasks)


def content_hash(task: Task) -> str:
    """Return a hash of problem, environment and checks, whatever the task is called; 64 hex digits."""
    data = to_dict(task)
    return digest({name: data[name] for name in ("problem", "environment", "checks")})


def digest(data: Any) -> str:
    """Return the SHA-256 of JSON values, independent of the order of keys."""
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
