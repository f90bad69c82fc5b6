"""The statement of a mined task: the issue or commit message without the fix, completed by failing tests."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hone.curate.mining import interface
from hone.curate.mining.candidates import Candidate, CommitParts
from hone.curate.mining.messages import references, strip_tool_text
from hone.curate.mining.refusal import CommitRejected, Reason
from hone.curate.statements import changed_lines, find_leak, list_failures, parse_failures, write_statement
from hone.curate.syntax import words
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.formats.rows import text

_PREFIX = re.compile(r"\[(fix|bugfix|bug)\]\s*|(fix|bugfix|bug|hotfix|feat|perf)(\([^)]*\))?!?:\s*", re.I)
_NOT_PACKAGES = {"src", "lib"}
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
class Statement:
    text: str
    sources: tuple[str, ...]  # of "issue", "commit", "tests", "interface"


@dataclass(frozen=True, slots=True, kw_only=True)
class FailingTests:
    """The tests that the fix makes pass."""

    ids: Sequence[str]
    log: str  # of a run before the fix with rewritten assertions


def write(
    candidate: Candidate,
    parts: CommitParts,
    failing: FailingTests,
    issues: Mapping[int, Issue],
    min_letters: int,
) -> Statement:
    """Return the statement of a candidate. Raises CommitRejected when every text would reveal the fix.

    Args:
        issues: exported issues by number.
        min_letters: a shorter text is completed by an example from the failing tests.
    """
    fix = read_fix(parts.gold_patch, parts.known, parts.tests_after.values())
    written = _from_issue(candidate, issues, fix) or _from_commit(candidate, fix)
    if sum(letter.isalpha() for text in written.values() for letter in text) < min_letters:
        written["tests"] = _from_tests(parts, failing, fix)
    if expected := interface.describe(_expected(parts, failing, "\n\n".join(written.values()))):
        written["interface"] = expected
    text = "\n\n".join(written.values()).strip()
    if leak := find_leak(text, fix.lines):
        raise CommitRejected(Reason.NO_STATEMENT, f"it repeats {leak!r}")
    return Statement(text=text, sources=tuple(written))


def _from_issue(candidate: Candidate, issues: Mapping[int, Issue], fix: Fix) -> dict[str, str]:
    """Return the first exported issue that the message names: its author knew no fix."""
    for number in references(candidate.message):
        if number in issues:
            issue = issues[number]
            text = without_fix(f"{issue.title.strip()}\n\n{issue.body}", fix, is_commit=False)
            if text:
                return {"issue": text}
    return {}


def _from_commit(candidate: Candidate, fix: Fix) -> dict[str, str]:
    text = without_fix(_PREFIX.sub("", strip_tool_text(candidate.message), count=1), fix, is_commit=True)
    return {"commit": text} if text else {}


def _from_tests(parts: CommitParts, failing: FailingTests, fix: Fix) -> str:
    failures = parse_failures(failing.log, failing.ids)
    packages = {part for path in parts.source for part in PurePosixPath(path).with_suffix("").parts}
    text = write_statement([failures], parts.tests_after, packages - _NOT_PACKAGES)
    if text is not None and not find_leak(text, fix.lines):
        return text.strip()
    return list_failures(failing.ids, failures)


def _expected(parts: CommitParts, failing: FailingTests, statement: str) -> interface.Expected:
    return interface.find_expected(
        parts.tests_after,
        failing.ids,
        sources=parts.sources_after.values(),
        known=parts.known | words(parts.tests_before.values()),
        gold_patch=parts.gold_patch,
        statement=statement,
    )


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
