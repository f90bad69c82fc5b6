"""Keeps the fix out of texts that people wrote about the bug."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection
from dataclasses import dataclass

from hone.curate.statements import changed_lines, find_leak
from hone.curate.syntax import words

_FENCED = re.compile(r"(^[ ]*```.*?(?:^[ ]*```[ ]*$|\Z))", re.MULTILINE | re.DOTALL)
_BREAK = re.compile(r"\n\s*\n|\n(?=\s*[-*+] )")  # an empty line, or the next list item
_LINK = re.compile(r"<?https?://\S*/(?:pull|commit|compare|merge_requests|releases)s?/?[^\s>)\]]*>?")
_REFERENCE = re.compile(r"(\w+:?\s+)?(\S*#|gh-)\d+\W*", re.IGNORECASE)  # `Closes #12.`
_DIFF = re.compile(r"^\s*(diff --git |@@ .*@@|(---|\+\+\+) [ab]/|```diff|```patch)", re.MULTILINE)
_CODE_NAME = re.compile(r"[a-z0-9][A-Z]|_|^[A-Z]{2,}$")
_CHANGE = re.compile(  # start of a paragraph about the change instead of the bug
    r"[-*+_ ]*(also,? )?((adds?|uses?|replaces?|changes?|moves?|makes?|removes?|updates?|renames?|"
    r"refactors?|simplify|introduces?|extracts?|tests?|fixed by|instead,)\b|"
    r"(the|this|my) (fix|patch|commit|change|pr)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What a statement must not repeat."""

    lines: frozenset[str]  # that the gold patch adds
    names: frozenset[str]  # that only the gold patch introduces and no test uses


def read_fix(gold_patch: str, known: Collection[str], tests: Collection[str]) -> Fix:
    """Return the lines and names of a fix.

    Args:
        known: every word in the source before the fix.
        tests: texts of the changed tests.
    """
    added = [line[1:] for line in gold_patch.splitlines() if line.startswith("+") and line[:4] != "+++ "]
    new = words(added) - set(known) - words(tests) - set(dir(builtins))
    names = frozenset(word for word in new if len(word) > 2 and _CODE_NAME.search(word))
    return Fix(lines=changed_lines(gold_patch), names=names)


def without_fix(text: str, fix: Fix, *, is_commit: bool) -> str:
    """Return the paragraphs and list items of a text that do not reveal the fix.

    Invariant: no line of `fix.lines` occurs in the result.

    Args:
        is_commit: the author knew the fix, so paragraphs after the title that describe the change go, too.
    """
    kept = [
        part
        for number, part in enumerate(_paragraphs(_LINK.sub("", text)))
        if not _reveals(part, fix) and not (is_commit and number and _CHANGE.match(part))
    ]
    while find_leak("\n\n".join(kept), fix.lines):  # a line may span two paragraphs
        kept.pop()
    return "\n\n".join(kept)


def _paragraphs(text: str) -> list[str]:
    parts: list[str] = []
    for number, part in enumerate(_FENCED.split(text.replace("\r\n", "\n"))):
        parts += [part] if number % 2 else _BREAK.split(part)
    return [part.strip("\n").rstrip() for part in parts if part.strip()]


def _reveals(paragraph: str, fix: Fix) -> bool:
    return bool(
        _DIFF.search(paragraph)
        or _REFERENCE.fullmatch(paragraph.strip())
        or words([paragraph]) & fix.names
        or find_leak(paragraph, fix.lines)
    )
