"""Selection of commits: small changes of Python source and tests, likely fixes first."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime

from hone.curate.files import Kind, is_inside, kind_of, packages
from hone.curate.mining.messages import Likelihood, classify_message, strip_tool_text
from hone.curate.mining.refusal import CommitRejected, Reason
from hone.curate.mining.settings import MiningSettings
from hone.curate.syntax import defines_tests, meaning, words
from hone.tasks.repository import Repository

_COUNTS = re.compile(r"\n?(\d+|-)\t(\d+|-)\t(.*)", re.DOTALL)
_MARK = "commit:"
_FORMAT = f"tformat:{_MARK}%H%x00%P%x00%ct%x00%B%x00"
DIFF = (
    *("--binary", "--full-index", "--no-renames", "--no-ext-diff", "--no-textconv", "--no-color"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    commit: HistoryCommit
    message: str  # of the commit, or of the merged commits where a merge has none of its own
    likelihood: Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    candidates: tuple[Candidate, ...]  # in the order of trial
    skipped: Mapping[Reason, int]  # commits that are not tried, by reason


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitParts:
    """The change of a commit, split into source and tests."""

    gold_patch: str
    test_patch: str
    source: tuple[str, ...]  # paths of the gold patch
    tests: tuple[str, ...]  # paths of the test patch
    sources_before: Mapping[str, str]  # changed Python source before the fix
    sources_after: Mapping[str, str]  # the same after the fix
    tests_before: Mapping[str, str]
    tests_after: Mapping[str, str]
    known: frozenset[str]  # every word in the Python files before the fix

    @property
    def test_texts(self) -> dict[str, str]:
        """The changed test files that are text; the test patch has binary and deleted ones."""
        return {path: self.tests_after[path] for path in self.tests if path in self.tests_after}


def select(repository: Repository, commits: Iterable[HistoryCommit], settings: MiningSettings) -> Selection:
    """Select commits by paths, sizes and messages; no file is read."""
    skipped: Counter[Reason] = Counter()
    chosen: list[Candidate] = []
    for commit in commits:
        try:
            chosen.append(_candidate(repository, commit, settings))
        except CommitRejected as rejection:
            skipped[rejection.reason] += 1
    chosen.sort(
        key=lambda candidate: candidate.likelihood is Likelihood.UNCLEAR
    )  # a stable sort: newest first within each
    return Selection(candidates=tuple(chosen), skipped=skipped)


def _candidate(repository: Repository, commit: HistoryCommit, settings: MiningSettings) -> Candidate:
    sizes: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for change in commit.changes:
        sizes[kind_of(change.path)].append(change.lines)
    if not sizes[Kind.SOURCE]:
        raise CommitRejected(Reason.NO_SOURCE)
    if not sizes[Kind.TEST]:
        raise CommitRejected(Reason.NO_TESTS)
    message = commit.message
    if commit.parents > 1 and not strip_tool_text(message):
        message = "\n\n".join([message.partition("\n")[0], *merged_messages(repository, commit)[:5]])
    likelihood = classify_message(message)
    if isinstance(likelihood, Reason):
        raise CommitRejected(likelihood)
    if sizes[Kind.COMPILED]:
        raise CommitRejected(Reason.COMPILED)
    limits = (
        (Kind.SOURCE, settings.max_source_files, settings.max_source_lines),
        (Kind.TEST, settings.max_test_files, settings.max_test_lines),
    )
    if any(len(sizes[kind]) > files or sum(sizes[kind]) > lines for kind, files, lines in limits):
        raise CommitRejected(Reason.TOO_LARGE)
    return Candidate(commit=commit, message=message, likelihood=likelihood)


def split_commit(repository: Repository, commit: HistoryCommit) -> CommitParts:
    """Read the change of a commit. Blocks while git runs. Raises TaskError when git fails."""
    before, after = repository.files(commit.base), repository.files(commit.id)
    folders = packages([*before, *after])
    changed = [change.path for change in commit.changes]
    tests = [path for path in changed if kind_of(path) is Kind.TEST]
    python = [path for path in changed if kind_of(path) is Kind.SOURCE]
    data = [path for path in changed if kind_of(path) is Kind.DATA and is_inside(path, folders)]
    known = repository.texts(commit.base, (path for path in before if path.endswith(".py")))
    return CommitParts(
        gold_patch=diff(repository, commit, [*python, *data]),
        test_patch=diff(repository, commit, tests),
        source=tuple(sorted([*python, *data])),
        tests=tuple(sorted(tests)),
        sources_before={path: known[path] for path in python if path in known},
        sources_after=repository.texts(commit.id, python),
        tests_before={path: known[path] for path in tests if path in known},
        tests_after=repository.texts(commit.id, tests),
        known=frozenset(words(known.values())),
    )


def test_modules(parts: CommitParts) -> tuple[str, ...]:
    """Return the changed test files. Raises CommitRejected when the change cannot become a task."""
    python = {*parts.sources_before, *parts.sources_after}
    try:
        if python >= set(parts.source) and all(_same(parts, path) for path in python):
            raise CommitRejected(Reason.SAME_CODE)
    except SyntaxError as error:
        raise CommitRejected(Reason.NOT_PYTHON, str(error)) from None
    modules = [path for path, text in parts.tests_after.items() if path.endswith(".py") and _has_tests(text)]
    if not modules:
        raise CommitRejected(Reason.NO_TEST_MODULE)
    return tuple(sorted(modules))


def _same(parts: CommitParts, path: str) -> bool:
    before, after = parts.sources_before.get(path), parts.sources_after.get(path)
    if before is None or after is None:
        return False  # a new or deleted module
    return meaning(before) == meaning(after)


def _has_tests(text: str) -> bool:
    try:
        return defines_tests(text)
    except SyntaxError:
        return False  # written for another Python version


# Explicit options, so that the repository's configuration cannot change a diff.


@dataclass(frozen=True, slots=True, kw_only=True)
class FileChange:
    path: str
    lines: int  # added plus deleted; 0 for a binary file


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryCommit:
    """One commit and its changes against the first parent."""

    id: str
    base: str  # id of its first parent
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
    return list(_parse(log.decode("utf-8", "surrogateescape").split("\0")))


def _parse(tokens: list[str]) -> Iterator[HistoryCommit]:
    at = 0
    while at < len(tokens):
        if not tokens[at].startswith(_MARK):
            at += 1
            continue
        commit, parents, seconds, message = tokens[at : at + 4]
        at += 4
        changes: list[FileChange] = []
        while at < len(tokens) and not tokens[at].startswith(_MARK):
            if found := _COUNTS.fullmatch(tokens[at]):
                added, deleted, path = found.groups()
                lines = 0 if "-" in (added, deleted) else int(added) + int(deleted)
                changes.append(FileChange(path=path, lines=lines))
            at += 1
        if parents:
            yield HistoryCommit(
                id=commit.removeprefix(_MARK),
                base=parents.split()[0],
                parents=len(parents.split()),
                date=datetime.fromtimestamp(int(seconds), UTC).isoformat(),
                message=message.strip(),
                changes=tuple(changes),
            )


def merged_messages(repository: Repository, commit: HistoryCommit) -> list[str]:
    """Return the messages of the commits that a merge brings in, oldest first; none for other commits."""
    if commit.parents < 2:
        return []
    log = repository.git(
        "log",
        "-z",
        "--no-merges",
        "--reverse",
        "--encoding=UTF-8",
        "--format=%B",
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
