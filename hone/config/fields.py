"""The tree of settings as dotted paths, with types, marks and the nearest valid name."""

from __future__ import annotations

import difflib
import types
import typing
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from pydantic.fields import FieldInfo

from hone.settings import Mark, Settings
from hone.utils.errors import MISUSE, HoneError, UsageError


class ConfigError(HoneError):
    """A recipe or a `--set` cannot be used; one sentence says where, what is wrong and what to do."""

    exit_code = MISUSE


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One setting, or one group of settings."""

    path: str  # dotted, from the top of a recipe
    info: FieldInfo
    group: bool  # False: a single value
    default: Any  # default value; of a group its instance or None; Ellipsis if required
    type_name: str  # shown to users
    marks: frozenset[Mark]  # its own and those of enclosing groups
    kinds: tuple[str, ...]  # of a union group: the kinds that have this setting; (): all of them


@cache
def walk(model: type[Settings]) -> tuple[Setting, ...]:
    """Return every setting below `model`, groups before their members."""
    return tuple(_walk((model,), None, "", None, frozenset()))


def _walk(
    variants: tuple[type[Settings], ...],
    tag_field: str | None,
    prefix: str,
    instance: Settings | None,
    marks: frozenset[Mark],
) -> Iterator[Setting]:
    """Yield the settings of one group, which is any of `variants`.

    Args:
        instance: default value of the group, whose fields may differ from the class's own defaults.
        marks: marks of the enclosing groups.
    """
    for name in dict.fromkeys(name for variant in variants for name in variant.model_fields):
        owners = [variant for variant in variants if name in variant.model_fields]
        info = owners[0].model_fields[name]
        default = ... if info.is_required() else info.get_default(call_default_factory=True)
        if instance is not None:
            default = getattr(instance, name, default)
        inner = variants_of(info)
        own = marks | {mark for mark in info.metadata if isinstance(mark, Mark)}
        yield Setting(
            path=prefix + name,
            info=info,
            group=bool(inner),
            default=default,
            type_name=" | ".join(dict.fromkeys(_type_name(owner.model_fields[name]) for owner in owners)),
            marks=own,
            kinds=()
            if tag_field is None or len(owners) == len(variants)
            else tuple(kind for owner in owners for kind in _kinds(owner, tag_field)),
        )
        if inner:
            below = default if isinstance(default, Settings) else None
            yield from _walk(inner, discriminator(info), f"{prefix}{name}.", below, own)


def variants_of(info: FieldInfo) -> tuple[type[Settings], ...]:
    """Return the settings classes of a field: one for a group, several for a union, () for a value."""
    members = _members(info.annotation)
    return tuple(kind for kind in members if isinstance(kind, type) and issubclass(kind, Settings))


def discriminator(info: FieldInfo) -> str | None:
    """Return the discriminating field of a union group; None for any other field."""
    return info.discriminator if isinstance(info.discriminator, str) else None


def _kinds(variant: type[Settings], field: str) -> tuple[str, ...]:
    """Return the values of the discriminating field that select this variant."""
    return typing.get_args(variant.model_fields[field].annotation)


def choose(info: FieldInfo, values: Mapping[str, Any]) -> type[Settings] | None:
    """Return the variant of a group that `values` select; None if the discriminating value is unknown."""
    variants = variants_of(info)
    field = discriminator(info)
    if field is None:
        return variants[0]
    default = info.get_default()
    chosen = values.get(field, getattr(default, field, None))
    for variant in variants:
        if chosen in _kinds(variant, field):
            return variant
    return None


def require_choice(name: str, known: Sequence[str], kind: str) -> str:
    """Return `name` if it is known. Raises UsageError with the nearest known name."""
    if name not in known:
        meant = nearest(name, known)
        raise UsageError(
            f"there is no {kind} {name!r}: {f'did you mean {meant}?' if meant else ', '.join(known)}"
        )
    return name


def nearest(name: str, valid: Collection[str]) -> str | None:
    """Return the valid name closest to `name`; None if none is close.

    A close name in the same group comes first, then one with the same last part in a group below, then a
    similar name anywhere.
    """
    group, _, last = name.rpartition(".")
    below = sorted(path for path in valid if path.startswith(f"{group}.") and path.endswith(f".{last}"))
    if below and group:
        return below[0]
    siblings = {path.rpartition(".")[2]: path for path in valid if path.rpartition(".")[0] == group}
    close = difflib.get_close_matches(last, siblings, n=1, cutoff=0.6)
    if close:
        return siblings[close[0]]
    same = sorted(path for path in valid if path.rpartition(".")[2] == last)
    if same:
        return next((path for path in same if path.startswith(group)), same[0])
    return next(iter(difflib.get_close_matches(name, valid, n=1, cutoff=0.6)), None)


def _type_name(info: FieldInfo) -> str:
    return " or ".join(_name(kind) for kind in _members(info.annotation) if kind is not types.NoneType)


def _members(annotation: Any) -> tuple[Any, ...]:
    if typing.get_origin(annotation) is typing.Annotated:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) in (typing.Union, types.UnionType):
        return tuple(member for each in typing.get_args(annotation) for member in _members(each))
    return (annotation,)


def _name(kind: Any) -> str:
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return " | ".join(repr(value) for value in arguments)
    if origin is not None:
        inner = ", ".join(_name(argument) for argument in arguments if argument is not ...)
        return f"{origin.__name__}[{inner}]"
    return getattr(kind, "__name__", str(kind)).lower().replace("str", "text", 1)
