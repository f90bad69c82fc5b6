"""The tree of settings as dotted paths: what exists, how it is called, what is nearest to a wrong name."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from pydantic.fields import FieldInfo

from hone.settings import Settings


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, or one group of them."""

    path: str  # dotted, from the top of a recipe
    info: FieldInfo
    group: type[Settings] | None  # the group's class; None: a single value
    default: Any  # of a group: the instance it stands for, or None; of a required value: Ellipsis


def walk(model: type[Settings], prefix: str = "", instance: Settings | None = None) -> Iterator[Setting]:
    """Every setting below `model`, groups before what they hold.

    `instance` is the default value of the group, whose fields may differ from the class's own defaults.
    """
    for name, info in model.model_fields.items():
        default = ... if info.is_required() else info.get_default(call_default_factory=True)
        if instance is not None:
            default = getattr(instance, name)
        group = group_of(info)
        yield Setting(path=prefix + name, info=info, group=group, default=default)
        if group is not None:
            inner = default if isinstance(default, Settings) else None
            yield from walk(group, f"{prefix}{name}.", inner)


def group_of(info: FieldInfo) -> type[Settings] | None:
    """The settings class a field holds (`Group` or `Group | None`); None for a single value."""
    for kind in _union(info.annotation):
        if isinstance(kind, type) and issubclass(kind, Settings):
            return kind
    return None


def type_name(info: FieldInfo) -> str:
    """The field's type in a few words, for people."""
    return " or ".join(_name(kind) for kind in _union(info.annotation) if kind is not types.NoneType)


def nearest(name: str, valid: Collection[str]) -> str | None:
    """The valid name that `name` was probably meant to be; None when nothing is close.

    Of dotted names, one in the same group is preferred, then one with the same last part anywhere.
    """
    group, _, last = name.rpartition(".")
    siblings = {path.rpartition(".")[2]: path for path in valid if path.rpartition(".")[0] == group}
    close = difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
    if close:
        return siblings[close[0]]
    same = sorted(path for path in valid if path.rpartition(".")[2] == last)
    if same:
        return next((path for path in same if path.startswith(group)), same[0])
    return next(iter(difflib.get_close_matches(name, valid, n=1, cutoff=0.6)), None)


def _union(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return typing.get_args(annotation)
    return (annotation,)


def _name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin is not None:
        inner = ", ".join(_name(argument) for argument in arguments if argument is not ...)
        return f"{origin.__name__}[{inner}]"
    return getattr(kind, "__name__", str(kind)).lower().replace("str", "text", 1)
