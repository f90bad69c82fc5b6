"""The statement of a mined task: the issue or commit message without the fix, and examples from its tests."""

from __future__ import annotations

import builtins
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hone.curate.mining.candidates import (
    MERGE_LINE,
    CommitParts,
    CommitRejected,
    Reason,
    identifiers,
    strip_tool_text,
    words,
)
from hone.curate.mining.chores import without_chores
from hone.curate.mining.claims import find_claims
from hone.curate.mining.examples import RunFiles, find_examples
from hone.curate.mining.fairness import Fairness, new_names, rate
from hone.curate.mining.writer import Writer
from hone.curate.statements import changed_lines, find_leak
from hone.tasks.errors import TaskError
from hone.tasks.files import read_rows
from hone.tasks.rows import text

_SHOWN_NAMES = 12
_CODE_NAME = re.compile(r"[A-Za-z0-9]_|[a-z][A-Z]")  # other names are words that any text may have
_IMPORT = re.compile(r"(?:import|from) ")
_REFERENCE = re.compile(r"(?:/issues/|\b(?:gh-|issue[ #]*|bug[ #]*)|(?<![\w&/])#)(\d{1,7})\b(?!\.\d)", re.I)


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    text: str
    sources: tuple[str, ...]  # of "issue", "commit", "writer", "tests", "names"
    fairness: Fairness


async def write(
    message: str,
    parts: CommitParts,
    tests: Sequence[str],
    issues: Mapping[int, Issue],
    run: RunFiles,
    min_letters: int,
    writer: Writer | None = None,
) -> Statement:
    """Return the statement of a commit: prose, then examples that fail without the fix and hold with it.

    Args:
        message: of the commit.
        tests: ids of the fail-to-pass tests.
        issues: exported issues by number.
        run: runs an example; each is run before it is printed.
        min_letters: see `rate`.
        writer: writes the prose in place of the issue or the message; its text must pass the same rules.
    Raises:
        CommitRejected: every text would reveal the fix, or the tests demand what nothing tells.
        GraderError: an example cannot be run.
        EngineError: the writer's endpoint fails.
    """
    fix = changed_lines(parts.gold_patch)
    if writer is not None:
        written = {"writer": await _from_writer(writer, message, parts, tests, fix)}
    else:
        written = _from_issue(message, issues, fix) or _from_commit(message, fix)
    prose = "\n\n".join(written.values())
    claims = find_claims(parts.tests_after, tests, parts.fixtures)
    imports = frozenset(line for line in fix if _IMPORT.match(line))  # the tests have theirs, too
    examples = await find_examples(
        claims, run, parts.gold_patch, lambda text: find_leak(text, fix - imports) is not None
    )
    if not examples.texts and "issue" not in written:
        raise CommitRejected(Reason.UNFAIR, f"no example shows what {tests[0]} demands")
    fairness = rate(prose, parts, tests, examples, min_letters)
    if examples.texts:
        lead = "This fails today:" if len(examples.texts) == 1 else "These fail today:"
        written["tests"] = "\n\n".join([lead, *examples.texts])
    if names := _untold_names(parts, written.values()):
        written["names"] = f"The tests use these new names: {', '.join(f'`{name}`' for name in names)}."
    text = "\n\n".join(written.values()).strip()
    if leak := find_leak(text, fix - imports):
        raise CommitRejected(Reason.NO_STATEMENT, f"it repeats {leak!r}")
    return Statement(text=text, sources=tuple(written), fairness=fairness)


def _from_issue(message: str, issues: Mapping[int, Issue], fix: Collection[str]) -> dict[str, str]:
    """Return the first exported issue that the message names: its author knew no fix."""
    for number in references(message):
        if number in issues:
            issue = issues[number]
            if text := without_fix(f"{issue.title.strip()}\n\n{issue.body}", fix):
                return {"issue": text}
    return {}


def _from_commit(message: str, fix: Collection[str]) -> dict[str, str]:
    text = without_fix(without_chores(strip_tool_text(message)), fix)
    return {"commit": text} if text else {}


async def _from_writer(
    writer: Writer, message: str, parts: CommitParts, tests: Sequence[str], fix: Collection[str]
) -> str:
    """Return the writer's text. Raises CommitRejected for one that reveals the fix or names hidden tests."""
    text = await writer.write(message, parts.gold_patch, parts.test_patch, tests)
    if not text:
        raise CommitRejected(Reason.NO_STATEMENT, "the writer wrote nothing")
    secret = sorted(hidden_names(parts) & words([text]))
    if leak := find_leak(text, fix):
        raise CommitRejected(Reason.NO_STATEMENT, f"the writer's text repeats {leak!r}")
    if secret:
        raise CommitRejected(Reason.NO_STATEMENT, f"the writer's text names {secret[0]!r} of the fix")
    if named := next((test for test in tests if test.rpartition("::")[2].partition("[")[0] in text), None):
        raise CommitRejected(Reason.NO_STATEMENT, f"the writer's text names the hidden test {named}")
    return text


def hidden_names(parts: CommitParts) -> set[str]:
    """Return the names that only the fix introduces and that no test uses: a text with one knows the fix."""
    made = identifiers(parts.sources_after.values()) - parts.known - identifiers(parts.tests_after.values())
    return {name for name in made if _CODE_NAME.search(name)} - set(dir(builtins))


def references(message: str) -> list[int]:
    """Return the issue numbers that a message names, each once; the number of a merge comes last."""
    first, _, rest = message.partition("\n")
    ordered = f"{rest}\n{first}" if MERGE_LINE.fullmatch(first) else message
    return list(dict.fromkeys(int(number) for number in _REFERENCE.findall(ordered)))


def _untold_names(parts: CommitParts, texts: Iterable[str]) -> list[str]:
    """Return new names that the tests use and the texts do not mention: an agent cannot guess them.

    Raises CommitRejected for a private name: no agent can solve a task whose tests use it.
    """
    new = sorted(new_names(parts))
    private = [name for name in new if name.startswith("_") and not name.endswith("__")]
    if private:
        raise CommitRejected(Reason.PRIVATE_NAMES, private[0])
    mentioned = words(texts)
    return [name for name in new if name not in mentioned][:_SHOWN_NAMES]


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
