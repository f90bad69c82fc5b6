"""Which commits are tried: small fixes of Python source that come with tests, the clear ones first."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hone.curate.files import Kind, kind_of, lies_in, packages
from hone.curate.mining.history import HistoryCommit, diff, merged_messages
from hone.curate.mining.messages import Likelihood, judge_message, own_text
from hone.curate.mining.refusal import Reason, Unfit
from hone.curate.mining.settings import MiningSettings
from hone.curate.syntax import defines_tests, meaning, words
from hone.tasks.repository import Repository


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    commit: HistoryCommit
    message: str  # of the commit, or of what it merges where it says nothing itself
    likelihood: Likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    candidates: tuple[Candidate, ...]  # in the order in which they are tried
    skipped: Mapping[Reason, int]  # commits that are not tried


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """A commit's change, taken apart."""

    gold_patch: str
    test_patch: str
    source: tuple[str, ...]  # paths of the gold patch
    tests: tuple[str, ...]  # paths of the test patch
    sources_before: Mapping[str, str]  # Python source that changes, as the fix finds it
    sources_after: Mapping[str, str]  # the same, as the fix leaves it
    tests_before: Mapping[str, str]
    tests_after: Mapping[str, str]
    known: frozenset[str]  # every word in the Python files before the fix

    @property
    def test_texts(self) -> dict[str, str]:
        """The changed test files that are text; the test patch has binary and deleted ones."""
        return {path: self.tests_after[path] for path in self.tests if path in self.tests_after}


def select(repository: Repository, commits: Iterable[HistoryCommit], settings: MiningSettings) -> Selection:
    """Choose by names, sizes and messages alone; nothing is read yet."""
    skipped: Counter[Reason] = Counter()
    chosen: list[Candidate] = []
    for commit in commits:
        try:
            chosen.append(_candidate(repository, commit, settings))
        except Unfit as unfit:
            skipped[unfit.reason] += 1
    chosen.sort(key=lambda candidate: candidate.likelihood is Likelihood.UNCLEAR)  # stable: newest first
    return Selection(candidates=tuple(chosen), skipped=skipped)


def _candidate(repository: Repository, commit: HistoryCommit, settings: MiningSettings) -> Candidate:
    sizes: dict[Kind, list[int]] = {kind: [] for kind in Kind}
    for change in commit.changes:
        sizes[kind_of(change.path)].append(change.lines)
    if not sizes[Kind.SOURCE]:
        raise Unfit(Reason.NO_SOURCE)
    if not sizes[Kind.TEST]:
        raise Unfit(Reason.NO_TESTS)
    message = commit.message
    if commit.parents > 1 and not own_text(message):
        message = "\n\n".join([message.partition("\n")[0], *merged_messages(repository, commit)[:5]])
    likelihood = judge_message(message)
    if isinstance(likelihood, Reason):
        raise Unfit(likelihood)
    if sizes[Kind.COMPILED]:
        raise Unfit(Reason.COMPILED)
    limits = (
        (Kind.SOURCE, settings.max_source_files, settings.max_source_lines),
        (Kind.TEST, settings.max_test_files, settings.max_test_lines),
    )
    if any(len(sizes[kind]) > files or sum(sizes[kind]) > lines for kind, files, lines in limits):
        raise Unfit(Reason.TOO_LARGE)
    return Candidate(commit=commit, message=message, likelihood=likelihood)


def take_apart(repository: Repository, commit: HistoryCommit) -> Parts:
    """Read what a commit changes. Blocks while git runs. Raises TaskError from git."""
    before, after = repository.files(commit.base), repository.files(commit.id)
    folders = packages([*before, *after])
    changed = [change.path for change in commit.changes]
    tests = [path for path in changed if kind_of(path) is Kind.TEST]
    python = [path for path in changed if kind_of(path) is Kind.SOURCE]
    data = [path for path in changed if kind_of(path) is Kind.DATA and lies_in(path, folders)]
    known = repository.texts(commit.base, (path for path in before if path.endswith(".py")))
    return Parts(
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


def test_modules(parts: Parts) -> tuple[str, ...]:
    """The changed files that hold tests: those to run. Raises Unfit when the change cannot make a task."""
    python = {*parts.sources_before, *parts.sources_after}
    try:
        if python >= set(parts.source) and all(_same(parts, path) for path in python):
            raise Unfit(Reason.SAME_CODE)
    except SyntaxError as error:
        raise Unfit(Reason.NOT_PYTHON, str(error)) from None
    modules = [path for path, text in parts.tests_after.items() if path.endswith(".py") and _has_tests(text)]
    if not modules:
        raise Unfit(Reason.NO_TEST_MODULE)
    return tuple(sorted(modules))


def _same(parts: Parts, path: str) -> bool:
    before, after = parts.sources_before.get(path), parts.sources_after.get(path)
    if before is None or after is None:
        return False  # a new or deleted module
    return meaning(before) == meaning(after)


def _has_tests(text: str) -> bool:
    try:
        return defines_tests(text)
    except SyntaxError:
        return False  # written for another Python: it cannot be run either
