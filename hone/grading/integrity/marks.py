"""Lines that keep a test from running or from failing: skips, expected failures and empty bodies."""

from __future__ import annotations

import re
from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from operator import itemgetter

from hone.grading.integrity.changes import Line, code_lines
from hone.grading.integrity.patterns import compile_search, squeeze

_SKIP = compile_search(
    r"pytest\.mark\.(?:skip|skipif|xfail)\b|\bpytest\.(?:skip|xfail|importorskip)\s*\("
    r"|unittest\.(?:skip\w*|expectedFailure|SkipTest)\b|@(?:skip|skipIf|skipUnless|xfail|expectedFailure)\b"
    r"|\.skipTest\s*\(|\braise SkipTest\b|__test__\s*=\s*False|__unittest_skip__"
)
DEFINITION = re.compile(r"(\s*)(?:async\s+)?(?:def|class)\s+(\w+)")
_FUNCTION = re.compile(r"\s*(?:async\s+)?def\s+(\w+)\s*\(")
_NEAR = 400  # lines searched for the definition around a line
_NOTHING = re.compile(r"(?:pass|\.\.\.|return(?: None)?|assert True|assert 1)\s*")


@dataclass(frozen=True, slots=True, kw_only=True)
class Mark:
    """A line that skips tests, or that is the whole body of a function."""

    owner: str  # name of its function or class; "" for the module
    code: str  # without white space; "" for an empty body


def find_marks(lines: Sequence[Line]) -> dict[int, tuple[Mark, int | None]]:
    """Return index of a line -> its mark, and the index of its owner's definition; None for the module.

    Args:
        lines: consecutive ones of a file.
    """
    found: dict[int, tuple[Mark, int | None]] = {}
    definitions: _Definitions | None = None
    for index, (_, text) in enumerate(lines):
        emptied = _emptied(lines, index)
        if emptied is not None:
            name, place = emptied
            found[index] = (Mark(owner=name, code=""), place)
        elif _SKIP.search(code := "".join(code_lines([text]))):
            definitions = definitions or _Definitions(lines)
            owner = definitions.owner(index)
            name, place = ("", None) if owner is None else (owner[1][2], owner[0])
            found[index] = (Mark(owner=name, code=squeeze(code)), place)
    return found


class _Definitions:
    """The definitions of functions and classes among lines, which lines near them look up."""

    def __init__(self, lines: Sequence[Line]) -> None:
        self._lines = lines
        self._found: list[tuple[int, re.Match[str]]] = []  # index of its line, and the match
        self._outer: list[int] = []  # of each: the place of the last one before it with less indent, or -1
        for index, (_, text) in enumerate(lines):
            match = DEFINITION.match(text)
            if match is not None:
                outer = len(self._found) - 1
                while outer >= 0 and len(self._found[outer][1][1]) >= len(match[1]):
                    outer = self._outer[outer]
                self._found.append((index, match))
                self._outer.append(outer)

    def owner(self, index: int) -> tuple[int, re.Match[str]] | None:
        """Return the definition that a line belongs to, and the index of its line; None for the module's."""
        text = self._lines[index][1]
        indent = len(text) - len(text.lstrip())
        if text.lstrip().startswith("@"):
            return self._below(index)
        return self._around(index, indent) if indent else None

    def _below(self, index: int) -> tuple[int, re.Match[str]] | None:
        place = bisect_right(self._found, index, key=itemgetter(0))
        found = self._found[place] if place < len(self._found) else None
        return found if found is not None and found[0] < index + _NEAR else None

    def _around(self, index: int, indent: int) -> tuple[int, re.Match[str]] | None:
        """Return the last definition above a line that has less indent."""
        place = bisect_left(self._found, index, key=itemgetter(0)) - 1
        while place >= 0 and len(self._found[place][1][1]) >= indent:
            place = self._outer[place]
        found = self._found[place] if place >= 0 else None
        return found if found is not None and found[0] >= index - _NEAR else None


def _emptied(lines: Sequence[Line], index: int) -> tuple[str, int] | None:
    """Return the function whose body starts at the line `index` and is empty, and the index of its header."""
    text = lines[index][1].rstrip()
    inline = _FUNCTION.match(text)
    if inline is not None and (body := _inline_body(text, inline.end())) is not None:
        return (inline[1], index) if _NOTHING.fullmatch(body) else None
    if index == 0 or not _NOTHING.fullmatch(text.strip()):
        return None
    text = lines[index - 1][1].rstrip()
    above = _FUNCTION.match(text) if text.endswith(":") else None
    return (above[1], index - 1) if above is not None and ")" in text[above.end() :] else None


def _inline_body(text: str, start: int) -> str | None:
    """Return the code behind a function's header on the same line, or None; `start` is after its "("."""
    last = text.rfind(":", start, len(text) - 1)  # the last colon with code behind it
    close = text.rfind(")", start, last) if last >= 0 else -1
    return text[text.index(":", close) + 1 :].lstrip() if close >= 0 else None
