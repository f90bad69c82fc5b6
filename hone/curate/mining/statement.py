"""The statement of a mined task: the issue or commit message without the fix, completed by failing tests."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hone.curate.failures import parse_failures
from hone.curate.mining import interface
from hone.curate.mining.candidates import Candidate, CommitParts
from hone.curate.mining.leaks import Fix, read_fix, without_fix
from hone.curate.mining.messages import references, strip_tool_text
from hone.curate.mining.refusal import CommitRejected, Reason
from hone.curate.statements import find_leak, list_failures, write_statement
from hone.curate.syntax import words
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.formats.rows import text

_PREFIX = re.compile(r"\[(fix|bugfix|bug)\]\s*|(fix|bugfix|bug|hotfix|feat|perf)(\([^)]*\))?!?:\s*", re.I)
_NOT_PACKAGES = {"src", "lib"}


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
    """Return the issues of a file by number. Raises TaskError naming the first row that cannot be read."""
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
