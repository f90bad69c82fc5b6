"""Fields of rows as data sets publish them: missing columns, None, lists inside strings."""

from __future__ import annotations

import datetime
import json
import math
from collections.abc import Mapping
from typing import Any

from hone.tasks.errors import TaskError

Row = dict[str, Any]  # one row of a data set: JSON values by column

_DEEPEST = 100  # nesting levels in a cell; Python's JSON encoder fails soon after


def parse(source: str | bytes) -> Any:
    """Return the value of a JSON text. Raises TaskError for any invalid text."""
    try:
        return json.loads(source)
    except RecursionError:
        raise TaskError("not valid JSON: it is nested too deeply") from None
    except ValueError as error:  # not JSON, not UTF-8, or a number of thousands of digits
        raise TaskError(f"not valid JSON: {error}") from None


def plain(value: Any, depth: int = 0) -> Any:
    """Return the value as JSON values; dates become strings. Raises TaskError for other types."""
    if value is None or isinstance(value, str | int):
        return value
    if isinstance(value, float):
        if not math.isfinite(value):
            raise TaskError(f"it holds {value}, which JSON does not have: write null there")
        return value
    if depth > _DEEPEST:
        raise TaskError(f"it is nested deeper than {_DEEPEST} levels")
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {name: plain(item, depth + 1) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item, depth + 1) for item in value]
    if isinstance(value, datetime.date | datetime.time):  # a datetime is a date
        return value.isoformat()
    raise TaskError(f"it holds a value of the type {type(value).__name__}, which JSON does not have")


def text(row: Mapping[str, Any], name: str, default: str | None = None) -> str:
    """Return a string column. Without a default, raises TaskError where it is missing, None or empty."""
    value = row.get(name)
    if value is None or value == "":
        if default is None:
            raise TaskError(f"`{name}` is missing")
        return default
    if not isinstance(value, str):
        raise TaskError(f"`{name}` must be a text, got {type(value).__name__}")
    return value


def texts(row: Mapping[str, Any], name: str) -> tuple[str, ...]:
    """Return a column with a list of strings, which may be JSON in a string; empty where it is missing."""
    value = row.get(name)
    if isinstance(value, str):
        value = _inside(value, name, "list") if value.strip() else []
    if value is None:
        return ()
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise TaskError(f"`{name}` must be a list of texts")
    return tuple(value)


def record(row: Mapping[str, Any], name: str) -> Row:
    """Return a column with an object, which may be JSON in a string. Raises TaskError."""
    value = row.get(name)
    if isinstance(value, str):
        value = _inside(value, name, "object")
    if not isinstance(value, dict):
        raise TaskError(f"`{name}` must be an object")
    return value


def merge(row: Row, before: Row, now: Row) -> Row:
    """Return `row` with the differences between `before` and `now`, in the encoding of its columns."""
    merged = dict(row)
    for name, value in now.items():
        if value == before.get(name):
            continue
        old = row.get(name)
        inner, earlier = _read(old), before.get(name)
        if isinstance(value, dict) and isinstance(inner, dict) and isinstance(earlier, dict):
            value = merge(inner, earlier, value)
        merged[name] = json.dumps(value) if isinstance(old, str) and not isinstance(value, str) else value
    return merged


def _inside(value: str, name: str, kind: str) -> Any:
    try:
        return parse(value)
    except TaskError as error:
        raise TaskError(f"`{name}` holds no {kind}: {error}") from None


def _read(value: Any) -> Any:
    """Return a cell, parsed where it is JSON in a string."""
    if isinstance(value, str) and value[:1] in ("[", "{"):
        try:
            return parse(value)
        except TaskError:
            return value
    return value
