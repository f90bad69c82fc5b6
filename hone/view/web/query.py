"""Filters of the table of rollouts as a query string, and back."""

from __future__ import annotations

import dataclasses
import math
import urllib.parse
from collections.abc import Mapping
from typing import Any, get_type_hints

from hone.utils.errors import HoneError
from hone.view.records import Filter, RolloutRow

TRUE, FALSE = "yes", "no"
_TYPES = get_type_hints(Filter)
_DEFAULT = Filter()
_SORTED_BY = tuple(field.name for field in dataclasses.fields(RolloutRow))


class BadQuery(HoneError):
    """A query string asks for something that does not exist; the message names what does."""


def read_filter(query: Mapping[str, str]) -> Filter:
    """Return the filter of a query string; empty values filter nothing. Raises BadQuery."""
    values: dict[str, Any] = {}
    for name, text in query.items():
        if name == "first" or text == "":
            continue
        if name not in _TYPES:
            raise BadQuery(f"there is no filter {name!r}; there are {', '.join(_TYPES)}")
        values[name] = _read(name, text)
    if values.get("sort", _DEFAULT.sort).removeprefix("-") not in _SORTED_BY:
        raise BadQuery(f"rollouts are not sorted by {values['sort']!r}, but by {', '.join(_SORTED_BY)}")
    return Filter(**values)


def read_first(query: Mapping[str, str]) -> int:
    """Return the index of the first row to show. Raises BadQuery."""
    text = query.get("first") or "0"
    if not text.isascii() or not text.isdigit():
        raise BadQuery(f"`first` is the index of a row, not {text!r}")
    return int(text[:12])


def write_filter(shown: Filter, **changes: Any) -> str:
    """Return the query string of a filter, without what filters nothing; `changes` replace fields."""
    changed = dataclasses.replace(shown, **changes)
    values = {
        name: _write(value) for name in _TYPES if (value := getattr(changed, name)) != getattr(_DEFAULT, name)
    }
    return urllib.parse.urlencode(values)


def _read(name: str, text: str) -> Any:
    kind = _TYPES[name]
    try:
        if kind == bool | None:
            return {TRUE: True, FALSE: False}[text]
        if kind == int | None:
            return int(text)
        if kind == float | None:
            value = float(text)
            return value if math.isfinite(value) else _refuse()
    except (ValueError, KeyError):
        wanted = f"{TRUE} or {FALSE}" if kind == bool | None else "a number"
        raise BadQuery(f"the filter {name} is {wanted}, not {text!r}") from None
    return text


def _refuse() -> float:
    raise ValueError


def _write(value: Any) -> str:
    if isinstance(value, bool):
        return TRUE if value else FALSE
    return f"{value:g}" if isinstance(value, float) else str(value)
