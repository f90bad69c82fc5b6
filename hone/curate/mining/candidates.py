"""Selection of commits: small changes of Python source and tests, newest first."""

from __future__ import annotations

import contextlib
import dataclasses
import io
import keyword
import re
import tokenize
from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum

from hone.curate.files import Kind, is_inside, kind_of, packages
from hone.curate.mining.settings import MiningSettings
from hone.tasks.repository import Repository

_COUNTS = re.compile(r"\n?(\d+|-)\t(\d+|-)\t(.*)", re.DOTALL)
MERGE_LINE = re.compile(
    r"Merge (pull request|branch|branches|remote-tracking branch|tag|commit|PR|#\d+)\b.*", re.I
)
# Trailers such as `Signed-off-by: ...`, and lines that only refer to an issue such as `Closes #12.`
_TOOL_LINE = re.compile(r"[\w-]+-by: .*|(fix(e[sd])?|close[sd]?|resolve[sd]?|refs?|see):? #\d+\.?", re.I)
_TRAILER = re.compile(r"[A-Z]\w*(?:-\w+)+: .*")  # of the last paragraph, such as `Change-Id: ...`
_TITLE_NUMBER = re.compile(r"\s*\(#\d+\)$")  # of the pull request
_TEST_FUNCTION = re.compile(r"^\s*(?:async )?def test", re.MULTILINE)
_TEXTS = (".py", ".pyi", ".rst", ".md", ".txt", ".cfg", ".toml", ".ini")
_WORD = re.compile(r"[A-Za-z_]\w*")
_MARK = "commit:"
_FORMAT = f"tformat:{_MARK}%H%x00%P%x00%ct%x00:%B%x00"  # the colon keeps a message from being a mark
# Explicit options, so that the repository's configuration cannot change a diff.
DIFF = (
    *("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


class Reason(StrEnum):
    """Why a commit does not become a task, in the order of the checks."""

    NO_SOURCE = "changes no Python source"
    NO_TESTS = "changes no tests"
    COMPILED = "changes compiled code"
    TOO_LARGE = "is too large"
    NO_TEST_MODULE = "changes no test module"
    NO_ENVIRONMENT = "its dependencies cannot be installed"
    DOES_NOT_RUN = "its tests do not run"
    TOO_SLOW = "its tests take too long"
    GOLD_FAILS = "its tests also fail with the fix"
    NO_FAIL_TO_PASS = "no test fails before the fix and passes after it"  # noqa: S105 - no password
    WHOLE_FEATURE = "it fixes more tests than one bug has"
    UNSTABLE = "the tests that it fixes are flaky"
    PRIVATE_NAMES = "its tests use private names that only the fix introduces"
    UNFAIR = "its tests demand what nothing tells"
    NO_STATEMENT = "every possible statement reveals the fix"
    NOT_ADMITTED = "validation refuses the task"


class CommitRejected(Exception):
    """The commit does not become a task."""

    def __init__(self, reason: Reason, detail: str = "") -> None:
        super().__init__(f"{reason.value}: {detail}" if detail else reason.value)
        self.reason, self.detail = reason, detail


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    candidates: tuple[HistoryCommit, ...]  # in the order of trial
    skipped: Mapping[Reason, int]  # commits that are not tried, by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitParts:
    """The change of a commit, split into source and tests."""

    gold_patch: str
    test_patch: str
    source: tuple[str, ...]  # paths of the gold patch
    tests: tuple[str, ...]  # paths of the test patch
    sources_after: Mapping[str, str]  # changed Python source after the fix
    tests_after: Mapping[str, str]  # changed test files that are text; the patch has binary and deleted ones
    known: frozenset[str]  # every word in the Python files before the fix
    before: str  # the text of all code and documentation before the fix
    tests_before: Mapping[str, str]  # the changed test files before the fix
    fixtures: Mapping[str, str]  # every conftest.py after the fix
    data: tuple[str, ...]  # changed files of the tests that are not Python


def select(repository: Repository, commits: Iterable[HistoryCommit], settings: MiningSettings) -> Selection:
    """Select commits by paths and sizes; no file is read.

    A merge without a message of its own gets those of the merged commits.
    """
    skipped: Counter[Reason] = Counter()
    chosen: list[HistoryCommit] = []
    for commit in commits:
        reason = _unsuitable(commit, settings)
        if reason is not None:
            skipped[reason] += 1
        elif commit.parents > 1 and not strip_tool_text(commit.message):
            messages = [commit.message.partition("\n")[0], *_merged_messages(repository, commit)[:5]]
            chosen.append(dataclasses.replace(commit, message="\n\n".join(messages)))
        else:
            chosen.append(commit)
    return Selection(candidates=tuple(chosen), skipped=skipped)


def _unsuitable(commit: HistoryCommit, settings: MiningSettings) -> Reason | None:
    """Return why the changed paths cannot become a task; None if they can."""
    sizes: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for change in commit.changes:
        sizes[kind_of(change.path, settings.tests)].append(change.lines)
    if not sizes[Kind.SOURCE]:
        return Reason.NO_SOURCE
    if not sizes[Kind.TEST]:
        return Reason.NO_TESTS
    if sizes[Kind.COMPILED]:
        return Reason.COMPILED
    limits = (
        (Kind.SOURCE, settings.max_source_files, settings.max_source_lines),
        (Kind.TEST, settings.max_test_files, settings.max_test_lines),
    )
    too_large = any(len(sizes[kind]) > files or sum(sizes[kind]) > lines for kind, files, lines in limits)
    return Reason.TOO_LARGE if too_large else None


def strip_tool_text(message: str) -> str:
    """Return a message without the text that tools add: merge line, trailers, pull request number."""
    lines = [line.rstrip() for line in message.splitlines() if not _TOOL_LINE.fullmatch(line.strip())]
    if lines and MERGE_LINE.fullmatch(lines[0]):
        lines = lines[1:]
    text, _, last = "\n".join(lines).strip().rpartition("\n\n")
    if text and not all(map(_TRAILER.fullmatch, last.splitlines())):
        text = f"{text}\n\n{last}"
    title, _, body = (text or last).partition("\n")
    return f"{_TITLE_NUMBER.sub('', title)}\n{body}".strip()


def split_commit(
    repository: Repository, commit: HistoryCommit, test_globs: Collection[str] = ()
) -> CommitParts:
    """Read the change of a commit. Blocks while git runs. Raises TaskError when git fails.

    Args:
        test_globs: see `hone.curate.files.kind_of`.
    """
    before, after = repository.files(commit.base), repository.files(commit.id)
    folders = packages([*before, *after])
    changed = [change.path for change in commit.changes]
    kinds = {path: kind_of(path, test_globs) for path in changed}
    tests = [path for path in changed if kinds[path] is Kind.TEST]
    python = [path for path in changed if kinds[path] is Kind.SOURCE]
    data = [path for path in changed if kinds[path] is Kind.DATA and is_inside(path, folders)]
    texts = repository.texts(commit.base, (path for path in before if path.endswith(_TEXTS)))
    python_before = [text for path, text in texts.items() if path.endswith(".py")]
    fixtures = [path for path in after if path.rpartition("/")[2] == "conftest.py"]
    return CommitParts(
        gold_patch=diff(repository, commit, [*python, *data]),
        test_patch=diff(repository, commit, tests),
        source=tuple(sorted([*python, *data])),
        tests=tuple(sorted(tests)),
        sources_after=repository.texts(commit.id, python),
        tests_after=repository.texts(commit.id, sorted(tests)),
        known=frozenset(words(python_before)),
        before="\n".join(texts.values()),
        tests_before={path: texts[path] for path in tests if path in texts},
        fixtures=repository.texts(commit.id, fixtures),
        data=tuple(path for path in tests if not path.endswith(".py")),
    )


def words(texts: Iterable[str]) -> set[str]:
    """Return every word that could be a name."""
    return {word for text in texts for word in _WORD.findall(text)}


def identifiers(sources: Iterable[str]) -> set[str]:
    """Return the names in the code of Python files, without comments and strings; none of invalid files."""
    found: set[str] = set()
    for source in sources:
        with contextlib.suppress(tokenize.TokenError, SyntaxError):
            tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
            found |= {token.string for token in tokens if token.type == tokenize.NAME}
    return {name for name in found if not keyword.iskeyword(name)}


def test_modules(parts: CommitParts) -> tuple[str, ...]:
    """Return the changed test files. Raises CommitRejected when there is none."""
    texts = parts.tests_after.items()
    modules = sorted(path for path, text in texts if path.endswith(".py") and _TEST_FUNCTION.search(text))
    if not modules:
        raise CommitRejected(Reason.NO_TEST_MODULE)
    return tuple(modules)


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    path: str
    lines: int  # added plus deleted; 0 for a binary file


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCommit:
    """One commit and its changes against the first parent."""

    id: str
    base: str  # id of its first parent; empty if it has none
    parents: int
    date: str  # committer date, ISO 8601, UTC
    message: str
    changes: tuple[FileChange, ...]


def walk(repository: Repository, branch: str = "HEAD", since: datetime | None = None) -> list[HistoryCommit]:
    """Return the commits of a branch that have a parent, newest first; a merge counts as one commit.

    Raises TaskError when the branch does not exist.
    """
    tip = repository.commit(branch)
    bound = [f"--since={int(since.timestamp())}"] if since else []
    log = repository.git(
        *("log", "-z", "--first-parent", "--diff-merges=first-parent", "--numstat", "--encoding=UTF-8"),
        *("--no-renames", "--no-ext-diff", "--no-color", f"--format={_FORMAT}"),
        *(*bound, tip, "--"),
    )
    records = f"\0{log.decode('utf-8', 'surrogateescape')}".split(f"\0{_MARK}")[1:]
    return [commit for commit in map(_parse, records) if commit.parents]


def _parse(record: str) -> HistoryCommit:
    commit, parents, seconds, message, *counts = record.split("\0")
    changes: list[FileChange] = []
    for found in filter(None, map(_COUNTS.fullmatch, counts)):
        added, deleted, path = found.groups()
        lines = 0 if "-" in (added, deleted) else int(added) + int(deleted)
        changes.append(FileChange(path=path, lines=lines))
    return HistoryCommit(
        id=commit,
        base=parents.partition(" ")[0],
        parents=len(parents.split()),
        date=datetime.fromtimestamp(int(seconds), UTC).isoformat(),
        message=message.removeprefix(":").strip(),
        changes=tuple(changes),
    )


def _merged_messages(repository: Repository, commit: HistoryCommit) -> list[str]:
    """Return the messages of the commits that a merge brings in, oldest first."""
    log = repository.git(
        *("log", "-z", "--no-merges", "--reverse", "--encoding=UTF-8", "--format=%B"),
        f"{commit.base}..{commit.id}",
    )
    return [text.strip() for text in log.decode("utf-8", "replace").split("\0") if text.strip()]


def diff(repository: Repository, commit: HistoryCommit, paths: Iterable[str]) -> str:
    """Return the changes of a commit in `paths` as a patch for `git apply`; empty without paths."""
    literal = [f":(literal,top){path}" for path in paths]
    if not literal:
        return ""
    patch = repository.git("diff", *DIFF, commit.base, commit.id, "--", *literal)
    return patch.decode("utf-8", "surrogateescape")
