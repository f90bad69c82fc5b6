"""Reading the JSON of a request: every value is checked before it is used; no field is dropped silently."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

import msgspec

from hone.policy.gateway.errors import invalid
from hone.policy.reply import ToolCall, ToolSpec

Json = dict[str, Any]
_NODES_MAX = 100_000  # of one value: the decoder builds them all in one go, which no thread can interrupt


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownFields:
    """The fields of a request's body, by what becomes of them."""

    read: Collection[str]
    overridden: Collection[str]  # the run decides about these
    ignored: Collection[str]  # without a meaning here
    neutral: Mapping[str, Callable[[Any], bool]]  # not supported: whether a value changes nothing

    def sort(self, body: Json) -> tuple[Json, tuple[str, ...]]:
        """Return the overridden fields with their values, and the names of the ignored ones.

        A field that is null is left out. Raises GatewayError for unsupported values and unknown fields.
        """
        overridden: Json = {}
        ignored: list[str] = []
        for name, value in body.items():
            if name in self.read or value is None:
                continue
            if name in self.overridden:
                overridden[name] = value
            elif name in self.ignored or (name in self.neutral and self.neutral[name](value)):
                ignored.append(name)
            elif name in self.neutral:
                raise invalid(f"{name} is not supported: leave it out", name)
            else:
                raise invalid(f"there is no field {name!r} here: leave it out", name)
        return overridden, tuple(ignored)


def read_fields(data: bytes, encoded: str = "") -> Json:
    """Return the fields of a request's body. Raises GatewayError unless it is a JSON object.

    The items of the list in field `encoded` stay encoded (`msgspec.Raw`): most of a long history is known.
    """
    body = _decode(data, "the body of the request", dict[str, msgspec.Raw])
    for name, value in body.items():
        is_encoded = name == encoded and bytes(memoryview(value)[:1]) == b"["
        body[name] = _decode(value, name, list[msgspec.Raw] if is_encoded else Any)
    return body


def read_object(data: msgspec.Raw, where: str) -> Json:
    """Return an encoded object. Raises GatewayError."""
    return as_object(_decode(data, where, Any), where)


def _decode(data: bytes | msgspec.Raw, where: str, kind: Any) -> Any:
    if kind is Any and len(memoryview(data)) > _NODES_MAX and _nodes(bytes(data)) > _NODES_MAX:
        raise invalid(f"{where} has more than {_NODES_MAX:,} lists and objects", where)
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError) as error:
        raise invalid(f"{where} cannot be read: {error}", where) from None


def _nodes(data: bytes) -> int:
    """Return an upper bound on the lists and objects in JSON; brackets in strings count, too."""
    return data.count(b"[") + data.count(b"{")


def as_object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", where)
    return cast("Json", value)


def as_list(value: object, where: str) -> list[Any]:
    """Return a list; null is an empty one."""
    if value is not None and not isinstance(value, list):
        raise invalid(f"{where} must be a list", where)
    return cast("list[Any]", value or [])


def as_objects(value: object, where: str) -> Iterator[tuple[Json, str]]:
    """Yield each object of a list, and its place."""
    for i, item in enumerate(as_list(value, where)):
        yield as_object(item, f"{where}[{i}]"), f"{where}[{i}]"


def as_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be a string", where)
    return value


def as_flag(value: object, where: str) -> bool:
    """Return a boolean; null is false."""
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{where} must be true or false", where)
    return bool(value)


def as_texts(value: object, where: str) -> tuple[str, ...]:
    """Return the texts of a list, or of a single string; null is an empty list."""
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(item, f"{where}[{i}]") for i, item in enumerate(as_list(value, where)))


def refuse_others(item: Json, where: str, known: Collection[str]) -> None:
    """Raise GatewayError for a field that is neither known nor null."""
    for name, value in item.items():
        if name not in known and value is not None:
            raise invalid(f"{where}.{name} is not supported: leave it out", f"{where}.{name}")


def joined_text(value: object, where: str, kinds: Collection[str]) -> str:
    """Return a string, or the text parts of these kinds, each on a line of its own; null is empty."""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    for part, place in as_objects(value, where):
        kind = part.get("type")
        if kind not in kinds:
            raise invalid(
                f"{place} has type {kind!r}: only text is supported ({', '.join(sorted(kinds))})", where
            )
        parts.append(as_text(part.get("refusal" if kind == "refusal" else "text"), f"{place}.text"))
    return "\n".join(parts)


def tool_spec(item: Json, where: str, schema: str) -> ToolSpec:
    """Return a tool in Hone's form; `schema` is the name of the field that holds its parameters."""
    name = as_text(item.get("name"), f"{where}.name")
    if not name:
        raise invalid(f"{where}.name is empty", f"{where}.name")
    parameters = item.get(schema)
    return {
        "name": name,
        "description": as_text(item.get("description") or "", f"{where}.description"),
        "parameters": {"type": "object", "properties": {}}
        if parameters is None
        else as_object(parameters, f"{where}.{schema}"),
    }


def tool_call(name: object, arguments: object, call_id: object, where: str) -> ToolCall:
    """Return a call that the assistant made; its arguments need not be JSON."""
    function = {
        "name": as_text(name, f"{where}.name"),
        "arguments": as_text(arguments or "", f"{where}.arguments"),
    }
    return {"id": as_text(call_id or "", f"{where}.id"), "type": "function", "function": function}


def may_call(choice: object) -> bool:
    """Return whether a `tool_choice` lets the model call tools. Raises GatewayError if it forces a call."""
    kind = cast("Json", choice).get("type") if isinstance(choice, dict) else choice
    if kind in (None, "auto", "none"):
        return kind != "none"
    raise invalid(
        "tool_choice can only be auto or none: a model that samples freely cannot be made to call a tool",
        "tool_choice",
    )


def is_empty(value: Any) -> bool:
    return value is False or (isinstance(value, (list, dict, str)) and not value)


def is_one_of(*values: Any) -> Callable[[Any], bool]:
    """Return a test for these values; true is not 1."""
    return lambda value: any(type(value) is type(other) and value == other for other in values)
