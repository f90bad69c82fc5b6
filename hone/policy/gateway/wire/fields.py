"""Reading the JSON of a request: every value is checked before it is used, and nothing is dropped unsaid."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any, cast

import orjson

from hone.policy.gateway.errors import invalid

Json = dict[str, Any]


def read_body(data: bytes) -> Json:
    """Return the fields of a request's body. Raises GatewayError for what is not a JSON object."""
    try:
        body = orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise invalid(f"the body of the request is not JSON: {error}") from None
    return as_object(body, "the body of the request")


def as_object(value: object, where: str) -> Json:
    if not isinstance(value, dict):
        raise invalid(f"{where} must be an object", where)
    return cast("Json", value)


def as_list(value: object, where: str) -> list[Any]:
    if not isinstance(value, list):
        raise invalid(f"{where} must be a list", where)
    return cast("list[Any]", value)


def as_text(value: object, where: str) -> str:
    if not isinstance(value, str):
        raise invalid(f"{where} must be a string", where)
    return value


def as_flag(value: object, where: str) -> bool:
    """null counts as false."""
    if value is not None and not isinstance(value, bool):
        raise invalid(f"{where} must be true or false", where)
    return bool(value)


def as_texts(value: object, where: str) -> tuple[str, ...]:
    """A string, a list of strings, or null for none."""
    if value is None:
        return ()
    if isinstance(value, str):
        return (value,)
    return tuple(as_text(item, f"{where}[{i}]") for i, item in enumerate(as_list(value, where)))


def sort_fields(
    body: Mapping[str, Any],
    *,
    read: Collection[str],
    overridden: Collection[str],
    ignored: Collection[str],
    neutral: Mapping[str, Callable[[Any], bool]],
) -> tuple[Json, tuple[str, ...]]:
    """What the client asked of things that the run decides, and which of its fields mean nothing here.

    `neutral` says of fields that are not served which values change nothing; null never does. Raises
    GatewayError for any other value, and for unknown fields.
    """
    asked: Json = {}
    without_meaning: list[str] = []
    for name, value in body.items():
        if name in read or value is None:
            continue
        if name in overridden:
            asked[name] = value
        elif name in ignored or (name in neutral and neutral[name](value)):
            without_meaning.append(name)
        elif name in neutral:
            raise invalid(f"{name} is not supported: leave it out", name)
        else:
            raise invalid(f"there is no field {name!r} here: leave it out", name)
    return asked, tuple(without_meaning)


def refuse_others(item: Json, where: str, known: Collection[str]) -> None:
    """Raise for a field that is neither known nor null."""
    for name, value in item.items():
        if name not in known and value is not None:
            raise invalid(f"{where}.{name} is not supported: leave it out", f"{where}.{name}")


def joined_text(value: object, where: str, kinds: Collection[str]) -> str:
    """Text, or parts of text of these kinds; each part is a paragraph. null is empty."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    parts: list[str] = []
    for i, item in enumerate(as_list(value, where)):
        part = as_object(item, f"{where}[{i}]")
        kind = part.get("type")
        if kind not in kinds:
            raise invalid(
                f"{where}[{i}] has type {kind!r}: only text is supported ({', '.join(sorted(kinds))})", where
            )
        parts.append(as_text(part.get("refusal" if kind == "refusal" else "text"), f"{where}[{i}].text"))
    return "\n".join(parts)


def tool_spec(item: Json, where: str, schema: str) -> Json:
    """A tool in Hone's form; `schema` is the name of the field that holds its parameters."""
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


def is_plain_text(value: Any) -> bool:
    """Whether the `text` of a responses request asks for no format."""
    given = as_object(value, "text")
    return given.get("format") in (None, {"type": "text"}) and given.keys() <= {"format", "verbosity"}


def is_empty(value: Any) -> bool:
    return value is False or (isinstance(value, (list, dict, str)) and not value)


def is_one_of(*values: Any) -> Callable[[Any], bool]:
    """Strict about types: true is not 1."""
    return lambda value: any(type(value) is type(other) and value == other for other in values)
