"""JSON from strangers, read into pydantic models at a cost in proportion to its size.

pydantic builds a whole document before it looks at any field, and then an error for each wrong item, while no
other thread of the process runs: 16 MiB of empty lists take it 5 s and 1.6 GiB. Documents that are not small
are therefore decoded by msgspec, which stops at the first value of a wrong type.
"""

from __future__ import annotations

import functools
import types
import typing
from typing import Any, TypeVar

import msgspec
from pydantic import BaseModel

SMALL = 1 << 13  # bytes that cost little, whatever they are
LONG = 1 << 20  # bytes above which unknown fields are errors for every model
_ERROR_MAX = 300  # characters of a message, which may quote the document

Model = TypeVar("Model", bound=BaseModel)


def read_json(model: type[Model], data: bytes) -> Model:
    """Return the model in a JSON object.

    A model with fields of bytes is decoded twice. Raises ValueError, of which ValidationError is one.
    """
    if len(data) <= SMALL:
        return model.model_validate_json(data)
    forbids = model.model_config.get("extra") == "forbid" or len(data) > LONG
    try:
        found = msgspec.json.decode(data, type=_outline_of(model, forbids))
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ValueError(str(error)[:_ERROR_MAX]) from None
    if any(field.annotation is bytes for field in model.model_fields.values()):
        return model.model_validate_json(data)
    return model.model_validate(msgspec.to_builtins(found))


@functools.cache
def _outline_of(model: type[BaseModel], forbids: bool) -> Any:
    """Return a msgspec type that accepts whatever `model` does."""
    fields: list[Any] = []
    for name, field in model.model_fields.items():
        kind = _outline(field.annotation, forbids)
        fields.append(
            (name, kind) if field.is_required() else (name, kind | msgspec.UnsetType, msgspec.UNSET)
        )
    return msgspec.defstruct(model.__name__, fields, forbid_unknown_fields=forbids, kw_only=True)


def _outline(kind: Any, forbids: bool) -> Any:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Annotated:
        return _outline(arguments[0], forbids)
    if origin in (typing.Union, types.UnionType):
        return functools.reduce(lambda one, other: one | _outline(other, forbids), arguments, None)
    if origin in (list, tuple):
        return list[_outline(arguments[0], forbids)]
    if origin is dict:
        return dict[str, _outline(arguments[1], forbids)]
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return _outline_of(kind, forbids)
    if kind in (str, bytes) or origin is typing.Literal:
        return str
    if kind in (int, float, bool):
        return int | float | str | bool  # pydantic reads numbers from texts, too
    if kind is types.NoneType:
        return None
    return dict[str, int | float | str | bool | None]  # a dataclass of numbers, such as Limits
