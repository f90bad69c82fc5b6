"""Strategies for JSON that nearly is a message, and for the frames of a sandbox's process 1."""

from __future__ import annotations

import json
import types
import typing
from pathlib import Path
from typing import Any

from hypothesis import strategies as st
from hypothesis.strategies import SearchStrategy
from pydantic import BaseModel

CORPUS = Path(__file__).parent / "corpus" / "messages"
_ODD_TEXTS = st.sampled_from(
    ["", "a", "host", "docker://x", "é", "\x00", "\ud800", "../x", "/", "a" * 5000, "0" * 64, "1e999",
     "\x1b[2J", "AA=="]
)  # fmt: skip
_NUMBERS = st.one_of(
    st.sampled_from([0, -1, 1, 2**31, 2**63, 2**64, 10**400, 0.0, -0.0, 0.5, 1e308, -1e308]),
    st.sampled_from([float("inf"), float("-inf"), float("nan")]),
    st.integers(-3, 300),
)
ANY: SearchStrategy[Any] = st.recursive(
    st.one_of(st.none(), st.booleans(), _NUMBERS, _ODD_TEXTS),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4),
        st.dictionaries(_ODD_TEXTS | st.sampled_from(["image", "type"]), inner, max_size=4),
    ),
    max_leaves=8,
)


def _values(kind: Any) -> SearchStrategy[Any]:
    """Return values of about the type of a field."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return objects(kind)
    if origin in (typing.Union, types.UnionType):
        return st.one_of(*(_values(each) for each in arguments))
    if origin is typing.Literal:
        return st.sampled_from(arguments)
    if origin is typing.Annotated:
        return _values(arguments[0])
    if origin in (list, tuple, set):
        inner = _values(arguments[0]) if arguments else ANY
        return st.lists(inner, max_size=3) | inner.map(lambda one: [one] * 300)
    if origin is dict:
        return st.dictionaries(_ODD_TEXTS, _values(arguments[1]), max_size=3)
    if kind in (int, float):
        return _NUMBERS
    if kind is bool:
        return st.booleans()
    if kind in (str, bytes):
        return _ODD_TEXTS | st.text(max_size=10)
    return ANY


def objects(model: type[BaseModel]) -> SearchStrategy[dict[str, Any]]:
    """Return objects with most of a model's fields, some of them with values of another type."""
    names = {
        field.alias or name: st.one_of(_values(field.annotation), _values(field.annotation), ANY)
        for name, field in model.model_fields.items()
    }
    required = {field.alias or name for name, field in model.model_fields.items() if field.is_required()}
    whole = st.fixed_dictionaries(
        {name: value for name, value in names.items() if name in required},
        optional={name: value for name, value in names.items() if name not in required},
    )
    return st.one_of(
        whole, whole, whole, whole, st.dictionaries(st.sampled_from([*names, "odd"]), ANY, max_size=5)
    )


def encoded(values: SearchStrategy[Any]) -> SearchStrategy[bytes]:
    """Return values as JSON, now and then damaged."""
    return st.builds(
        _damage,
        values,
        st.sampled_from(["", "", "", "", "cut", "byte", "twice", "deep"]),
        st.integers(0, 999),
    )


def _damage(value: Any, how: str, place: int) -> bytes:
    data = json.dumps(value, ensure_ascii=place % 2 == 0).encode("utf-8", "surrogatepass")
    place %= max(len(data), 1)
    if how == "cut":
        return data[:place]
    if how == "byte":
        return data[:place] + bytes([place % 256]) + data[place + 1 :]
    if how == "twice":
        return data + data
    return b'{"a":' * 5000 + data if how == "deep" else data


def kept() -> dict[str, bytes]:
    """Return the kept inputs: name -> body."""
    return {file.stem: file.read_bytes() for file in sorted(CORPUS.glob("*.json"))}
