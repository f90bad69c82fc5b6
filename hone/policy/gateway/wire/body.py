"""Parsing the bodies of requests, of which only the end is new: a client sends its history with every call.

A session's bodies begin like earlier ones. What begins alike, byte for byte, up to the end of an item of the
history, is compared and not parsed: after equal bytes a parser is in the same state. The rule that must not
break: what `BodyReader` gives is what parsing the whole body gives.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from pydantic_core import from_json

from hone.policy.gateway.errors import invalid
from hone.policy.gateway.wire.fields import Json, as_object

_LINES = 8  # conversations that may alternate, such as those of sub-agents
_scan = json.JSONDecoder().raw_decode  # (text, start) -> value, end


@dataclass(frozen=True, slots=True)
class _Line:
    """A body up to an item of its history."""

    before: Json  # its fields before the history
    segments: tuple[bytes, ...]  # from the beginning of the body; each ends with an item
    counts: tuple[int, ...]  # items that end in each of them
    items: list[Any]

    def known(self, data: bytes) -> tuple[int, int]:
        """How many segments `data` begins with, and their length in bytes."""
        at = 0
        for number, segment in enumerate(self.segments):
            if not data.startswith(segment, at):
                return number, at
            at += len(segment)
        return len(self.segments), at

    def cut(self, segments: int) -> _Line:
        counts = self.counts[:segments]
        return _Line(self.before, self.segments[:segments], counts, self.items[: sum(counts)])

    def grown(self, segment: bytes, items: list[Any]) -> _Line:
        return _Line(
            self.before, (*self.segments, segment), (*self.counts, len(items)), [*self.items, *items]
        )


class BodyReader:
    """Reads bodies whose history is the list in field `name`; known items are the same objects again."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._opening = b'{"' + name.encode() + b'":['
        self._lines: list[_Line] = []  # the latest last

    def read(self, data: bytes) -> Json:
        """The fields of a body. Raises GatewayError for what is not a JSON object."""
        matches = [(line, *line.known(data)) for line in self._lines]
        line, segments, at = max(matches, key=lambda match: match[2], default=(None, 0, 0))
        if line is not None and segments:
            body = self._go_on(line, segments, data, at)
            if body is not None:
                return body
        body = as_object(_parse(data), "the body of the request")
        found = _history(data.decode(), self._name)
        if found is not None and isinstance(body.get(self._name), list):
            end, before = found
            self._remember(_Line(before, (), (), []).grown(data.decode()[:end].encode(), body[self._name]))
        return body

    def _go_on(self, line: _Line, segments: int, data: bytes, at: int) -> Json | None:
        """The body, whose bytes up to `at` are those of `line`. None: that cannot be told from its rest."""
        rest = data[at:].lstrip(b" \t\r\n")
        if rest[:1] not in (b",", b"]") or b'"' + self._name.encode() + b'"' in rest:
            return None  # the same field again, which would replace the history
        more = rest[:1] == b","
        added = self._opening + (rest[1:] if more else rest)
        fields = as_object(_parse(added), "the body of the request")
        items = fields[self._name]
        if more and not items:
            return None  # a comma and nothing behind it: let the parser of the whole say so
        known = line if segments == len(line.segments) else line.cut(segments)
        if items:
            text = added.decode()
            end = len(text[: _end_of_items(text, len(self._opening))].encode())
            skipped = len(data) - at - len(rest) + 1  # white space and the comma
            grown = known.grown(data[at : at + skipped + end - len(self._opening)], items)
            self._remember(grown, line if known is line else None)
            known = grown
        return {**known.before, **fields, self._name: list(known.items)}

    def _remember(self, line: _Line, instead: _Line | None = None) -> None:
        kept = [other for other in self._lines if other is not instead]
        self._lines = [*kept[-_LINES + 1 :], line]


def _parse(data: bytes) -> Any:
    try:
        return from_json(data, allow_inf_nan=False)
    except ValueError as error:
        raise invalid(f"the body of the request is not JSON: {error}") from None


def _history(text: str, name: str) -> tuple[int, Json] | None:
    """Where the last item of the list in field `name` of an object ends, and the fields before it.

    `text` is JSON. None where the field is missing, repeated, or holds no items.
    """
    before: Json = {}
    at = _skip(text, _skip(text, 0) + 1)
    while text[at] == '"':
        key, at = _scan(text, at)
        at = _skip(text, _skip(text, at) + 1)
        if key == name:
            if text[at] != "[" or f'"{name}"' in text[: at - 1].replace(f'"{name}"', "", 1):
                return None
            end = _end_of_items(text, at + 1)
            if end == at + 1 or f'"{name}"' in text[end:]:
                return None
            return end, before
        before[key], at = _scan(text, at)
        at = _skip(text, at)
        if text[at] != ",":
            return None
        at = _skip(text, at + 1)
    return None


def _end_of_items(text: str, at: int) -> int:
    """Where the last item of a list ends, whose first one begins behind `at`; `at` for an empty list."""
    end = at
    at = _skip(text, at)
    while text[at] != "]":
        _, end = _scan(text, at)
        at = _skip(text, end)
        if text[at] == ",":
            at = _skip(text, at + 1)
    return end


def _skip(text: str, at: int) -> int:
    while text[at] in " \t\r\n":
        at += 1
    return at
