"""Searches in code that stay fast on any text."""

from __future__ import annotations

import re
from collections.abc import Iterator

from hone.grading.integrity.changes import MAX_LINE

BLOCK = 1 << 16  # characters searched in one call, which lets no other thread run meanwhile
MAX_MATCH = 51 * (MAX_LINE + 1)  # characters of the longest match of any pattern: an option over 51 lines


def compile_search(pattern: str) -> re.Pattern[str]:
    """Compile a pattern so that a search skips most alternatives by their first letters.

    `\\bword` becomes `w(?<=\\bw)ord`, which matches the same: an alternative that starts with an assertion
    would be entered at every character.
    """
    quick = re.sub(r"\\b([A-Za-z_])(?![*+?{])", r"\1(?<=\\b\1)", pattern)
    return re.compile(quick, re.MULTILINE)


def find_all(pattern: re.Pattern[str], text: str) -> Iterator[re.Match[str]]:
    """Yield the matches in `text`, as `finditer` does, in searches of at most BLOCK + MAX_MATCH characters.

    A search holds the interpreter; other threads run between two of them.
    """
    position = 0
    while position < len(text):
        limit = position + BLOCK
        following = limit
        for match in pattern.finditer(text, position, limit + MAX_MATCH):
            if match.start() >= limit:
                break
            following = max(limit, match.end())
            yield match
        position = following


def squeeze(text: str) -> str:
    """Return text without white space and with one kind of quotes, which formatters change."""
    return "".join(text.split()).replace("'", '"')
