"""The statement of a mined task: the issue or commit message without the fix, completed by failing tests."""

from __future__ import annotations

import builtins
import contextlib
import io
import keyword
import re
import tokenize
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from hone.curate.mining.candidates import (
    MERGE_LINE,
    CommitParts,
    CommitRejected,
    Reason,
    strip_tool_text,
    words,
)
from hone.curate.mining.runs import Observation
from hone.curate.statements import changed_lines, find_leak, list_failures, parse_failures, write_statement
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.rows import text

_SHOWN_NAMES = 12
_REFERENCE = re.compile(r"(?:/issues/|\b(?:gh-|issue[ #]*|bug[ #]*)|(?<![\w&/])#)(\d{1,7})\b(?!\.\d)", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    text: str
    sources: tuple[str, ...]  # of "issue", "commit", "tests", "names"


def write(
    message: str,
    parts: CommitParts,
    observed: Observation,
    issues: Mapping[int, Issue],
    min_letters: int,
) -> Statement:
    """Return the statement of a commit. Raises CommitRejected when every text would reveal the fix.

    Args:
        message: of the commit.
        issues: exported issues by number.
        min_letters: a shorter text is completed by an example from the failing tests.
    """
    fix = changed_lines(parts.gold_patch)
    written = _from_issue(message, issues, fix) or _from_commit(message, fix)
    if sum(letter.isalpha() for text in written.values() for letter in text) < min_letters:
        written["tests"] = _from_tests(parts, observed, fix)
    if names := _new_names(parts, written.values()):
        written["names"] = f"The tests use these new names: {', '.join(f'`{name}`' for name in names)}."
    text = "\n\n".join(written.values()).strip()
    if leak := find_leak(text, fix):
        raise CommitRejected(Reason.NO_STATEMENT, f"it repeats {leak!r}")
    return Statement(text=text, sources=tuple(written))


def _from_issue(message: str, issues: Mapping[int, Issue], fix: Collection[str]) -> dict[str, str]:
    """Return the first exported issue that the message names: its author knew no fix."""
    for number in references(message):
        if number in issues:
            issue = issues[number]
            if text := without_fix(f"{issue.title.strip()}\n\n{issue.body}", fix):
                return {"issue": text}
    return {}


def _from_commit(message: str, fix: Collection[str]) -> dict[str, str]:
    text = without_fix(strip_tool_text(message), fix)
    return {"commit": text} if text else {}


def references(message: str) -> list[int]:
    """Return the issue numbers that a message names, each once; the number of a merge comes last."""
    first, _, rest = message.partition("\n")
    ordered = f"{rest}\n{first}" if MERGE_LINE.fullmatch(first) else message
    return list(dict.fromkeys(int(number) for number in _REFERENCE.findall(ordered)))


def _from_tests(parts: CommitParts, observed: Observation, fix: Collection[str]) -> str:
    failing = observed.compared.fail_to_pass
    failures = parse_failures(observed.log, failing)
    text = write_statement([failures], parts.tests_after, parts.source)
    if text is not None and not find_leak(text, fix):
        return text.strip()
    return list_failures(failing, failures)


def _new_names(parts: CommitParts, texts: Iterable[str]) -> list[str]:
    """Return new names that the tests use and the texts do not mention: an agent cannot guess them.

    Raises CommitRejected for a private name: no agent can solve a task whose tests use it.
    """
    used = _identifiers(parts.tests_after.values()) & _identifiers(parts.sources_after.values())
    new = sorted(used - parts.known - set(dir(builtins)))
    private = [name for name in new if name.startswith("_") and not name.endswith("__")]
    if private:
        raise CommitRejected(Reason.PRIVATE_NAMES, private[0])
    mentioned = words(texts)
    return [name for name in new if name not in mentioned][:_SHOWN_NAMES]


def _identifiers(sources: Iterable[str]) -> set[str]:
    """Return the names in the code of Python files, without comments and strings; none of invalid files."""
    found: set[str] = set()
    for source in sources:
        with contextlib.suppress(tokenize.TokenError, SyntaxError):
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
            found |= {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in found if not keyword.iskeyword(name)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Issue:
    number: int
    title: str
    body: str


def read_issues(path: Path) -> Mapping[int, Issue]:
    """Return the issues of a file by number: one JSON object per line with `number`, `title` and `body`.

    Raises TaskError naming the first row that cannot be read.
    """
    issues: dict[int, Issue] = {}
    for count, row in enumerate(read_rows(path), start=1):
        try:
            if isinstance(row, TaskError):
                raise row
            number = row.get("number")
            if not isinstance(number, int) or isinstance(number, bool):
                raise TaskError(f"`number` must be a whole number, got {number!r}")
            issues[number] = Issue(number=number, title=text(row, "title"), body=text(row, "body", ""))
        except TaskError as error:
            raise TaskError(f"{path}, issue {count}: {error}") from None
    return issues


def without_fix(text: str, fix: Collection[str]) -> str:
    """Return the paragraphs of a text that repeat none of the lines of a fix.

    Invariant: no line of `fix` occurs in the result.
    """
    paragraphs = re.split(r"\n\s*\n", text.replace("\r\n", "\n"))
    kept = [part.strip("\n") for part in paragraphs if part.strip() and not find_leak(part, fix)]
    while find_leak("\n\n".join(kept), fix):  # a line may span two paragraphs
        kept.pop()
    return "\n\n".join(kept)
