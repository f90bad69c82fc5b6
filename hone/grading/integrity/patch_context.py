"""The input of all scanners: a patch's changes line by line, the task's tests, and code that is not new."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from hone.environment import FilePatch, PatchRefused, parse_patch
from hone.environment.patch import folders_around
from hone.grading.integrity.changes import Change, code_lines, read_changes
from hone.grading.integrity.marks import Mark, find_marks
from hone.grading.integrity.patterns import find_all, squeeze
from hone.types import Task

MAX_STEPS = 64_000_000  # of a scan, where its work is a product of two sizes; see Budget


class Budget:
    """The work that one patch may still cause where it grows as the product of two sizes."""

    def __init__(self) -> None:
        self._left = MAX_STEPS

    def spend(self, steps: int) -> None:
        """Raise PatchRefused after MAX_STEPS; a step is the time to compare a few characters."""
        self._left -= steps
        if self._left < 0:
            raise PatchRefused("the patch repeats too much code, or has too many patterns, to be read")


_TEST_FILES = {"conftest.py", "tests.py", "testing.py"}
_TEST_FOLDERS = {"test", "tests", "testing", "_testing", "testsuite"}
_NAMED_AFTER_PYTEST = re.compile(r"(?:^|_)_?(?:pytest|pluggy)(?:_|$)")
_DEALS_WITH_PYTEST = re.compile(
    r"^[ \t]*(?:import|from)\s+(?:_?pytest|pluggy)\b|^[ \t]*(?:async )?def pytest_\w+\(|\b_pytest\.|pytest11",
    re.M,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Tampering:
    """One attempt of a patch to influence its grading."""

    path: str
    evidence: str  # one sentence, which names the file


class KnownCode:
    """Code that is not new: what the patch removes and the reference fix adds, or a trusted test."""

    def __init__(self, text: str, budget: Budget) -> None:
        self._text, self._budget = text, budget
        self._matches: dict[re.Pattern[str], frozenset[str]] = {}
        self._searched: dict[str, bool] = {}

    @cached_property
    def _squeezed(self) -> str:
        return squeeze(self._text)

    @cached_property
    def _lines(self) -> frozenset[str]:
        return frozenset(self._text.replace(" ", "").replace("\t", "").replace("'", '"').split("\n"))

    def holds(self, excerpt: str) -> bool:
        """Return whether it has `excerpt`, ignoring white space. Raises PatchRefused after many searches."""
        excerpt = squeeze(excerpt)
        if excerpt in self._lines:
            return True
        if excerpt not in self._searched:
            self._budget.spend(len(self._squeezed))
            self._searched[excerpt] = excerpt in self._squeezed
        return self._searched[excerpt]

    def first_new(self, pattern: re.Pattern[str], text: str) -> str | None:
        """Return the first match in `text` that it does not have. Raises PatchRefused; see `holds`."""
        seen: set[str] = set()
        for match in find_all(pattern, text):
            found = match.group()
            if found in seen:
                continue
            seen.add(found)
            if squeeze(found) not in self._matches_of(pattern) and not self.holds(found):
                return found.strip()
        return None

    def _matches_of(self, pattern: re.Pattern[str]) -> frozenset[str]:
        """Return its own matches: most code that is not new is among them, so that nothing is searched."""
        if pattern not in self._matches:
            own = (squeeze(match.group()) for match in find_all(pattern, self._text))
            self._matches[pattern] = frozenset(own)
        return self._matches[pattern]


@dataclass(frozen=True, kw_only=True)  # cached properties need a class without slots
class PatchContext:
    """A patch and the facts about its task that decide whether a change is evidence."""

    changes: tuple[Change, ...]
    tests: Mapping[str, frozenset[str]]  # test file of the task -> names of its test functions
    trusted: Mapping[str, str]  # path -> text of the task's own tests
    reference: tuple[Change, ...]  # of the reference fix and the task's test patch
    roots: frozenset[str]  # directories that Python imports from, "" or ending in "/"
    requirements: frozenset[str]  # guessed import names of the installed requirements
    own_names: frozenset[str]  # guessed import names of the project itself
    about_pytest: bool  # the project itself is about pytest
    old: KnownCode  # code that the patch removes or the reference fix adds
    environments: frozenset[str]  # virtual environments that the patch adds, ending in "/"
    budget: Budget

    @cached_property
    def written(self) -> frozenset[str]:
        """The paths that the patch writes a file to."""
        return frozenset(change.path for change in self.changes if not change.deleted)

    @cached_property
    def removed(self) -> frozenset[str]:
        """The paths that the patch removes a file from, to delete, move or replace it."""
        return _removed(self.changes)

    @cached_property
    def removed_by_reference(self) -> frozenset[str]:
        """The same of the reference fix and the task's test patch."""
        return _removed(self.reference)

    @cached_property
    def known_marks(self) -> frozenset[Mark]:
        """The marks that the patch moves or the task's own fix and test patch have."""
        texts = [[line for line in hunk.lines if line[0] != "+"] for c in self.changes for hunk in c.hunks]
        texts += [hunk.after for change in self.reference for hunk in change.hunks]
        return frozenset(mark for lines in texts for mark, _ in find_marks(lines).values())

    def trusted_marks(self, path: str) -> frozenset[Mark]:
        """Return the marks of the task's own text of a test file."""
        lines = [(" ", line) for line in self.trusted.get(path, "").splitlines()]
        return frozenset(mark for mark, _ in find_marks(lines).values())

    @cached_property
    def names_below(self) -> Mapping[str, set[str]]:
        """Test file of the task, or directory around one -> names of the test functions there."""
        names: dict[str, set[str]] = {}
        for test, functions in self.tests.items():
            for path in (test, *(folder.rstrip("/") for folder in folders_around(test))):
                names.setdefault(path, set()).update(functions)
        return names

    @cached_property
    def test_folders(self) -> frozenset[str]:
        """The directories of test files, "" or ending in "/"."""
        return frozenset(test[: test.rfind("/") + 1] for test in self.tests)

    @cached_property
    def hidden_by(self) -> Mapping[str, str]:
        """Directory of a package that would hide a test file, ending in "/" -> the file."""
        return {f"{test.removesuffix('.py')}/": test for test in self.tests}


def read_context(parts: Sequence[FilePatch], task: Task) -> PatchContext:
    """Return the context of a parsed patch."""
    changes = read_changes(parts)
    gold = _changes_of(task.checks.gold_patch)
    old = [line for change in changes for line in change.lines("-")]
    old += [line for change in gold for line in change.lines("+")]
    environment = task.environment
    budget = Budget()
    return PatchContext(
        changes=changes,
        tests=_named_tests(task),
        trusted=task.checks.test_files,
        reference=(*gold, *_changes_of(task.checks.test_patch)),
        roots=frozenset(["", "src/", *(f"{path.strip('/')}/" for path in environment.paths if path)]),
        requirements=frozenset(map(_import_name, environment.requirements)),
        own_names=_own_names(task),
        about_pytest=_about_pytest(task, gold),
        old=KnownCode("\n".join(old), budget),
        environments=frozenset(
            change.path.removesuffix("pyvenv.cfg")
            for change in changes
            if change.created and change.path.endswith("/pyvenv.cfg")
        ),
        budget=budget,
    )


def is_test_name(path: str) -> bool:
    """Return whether a file has the name of a module of tests."""
    name = path.rsplit("/", 1)[-1]
    named = name.startswith("test_") and name.endswith(".py")
    return named or name.endswith(("_test.py", "_tests.py")) or name == "tests.py" or path == "test.py"


def is_test_code(path: str) -> bool:
    """Return whether a path is that of a test, or lies in a directory of tests."""
    parts = path.split("/")
    named = parts[-1].startswith("test_") or parts[-1] in _TEST_FILES or is_test_name(path)
    return named or any(part in _TEST_FOLDERS for part in parts[:-1])


def _removed(changes: Sequence[Change]) -> frozenset[str]:
    moved = (c.before for c in changes if c.before is not None and c.before != c.path)
    return frozenset([*moved, *(change.path for change in changes if change.deleted)])


def _changes_of(patch: str) -> tuple[Change, ...]:
    try:
        return read_changes(parse_patch(patch))
    except PatchRefused:
        return ()  # a data set's own patch may have its own format


def _named_tests(task: Task) -> dict[str, frozenset[str]]:
    checks = task.checks
    names: dict[str, set[str]] = {path: set() for path in checks.test_files if path.endswith(".py")}
    for change in _changes_of(checks.test_patch):
        if not change.deleted and change.path.endswith(".py"):
            names.setdefault(change.path, set())
    for test in (*checks.fail_to_pass, *checks.pass_to_pass):
        file, _, rest = test.partition("::")
        if file.endswith(".py") and " " not in file:
            names.setdefault(file, set()).add(rest.split("[")[0].rsplit("::", 1)[-1])
    return {file: frozenset(found - {""}) for file, found in names.items()}


def _own_names(task: Task) -> frozenset[str]:
    environment = task.environment
    names = (environment.repo, environment.distribution, task.id.partition("-")[0].replace("__", "/"))
    return frozenset(_import_name(name.rsplit("/", 1)[-1]) for name in names if name)


def _import_name(requirement: str) -> str:
    return re.split(r"[=<>!~;\[ @]", requirement, maxsplit=1)[0].strip().lower().replace("-", "_")


def _about_pytest(task: Task, gold: Sequence[Change]) -> bool:
    """Return whether the project's files or the reference fix use pytest's interfaces."""
    if any(_NAMED_AFTER_PYTEST.search(name) for name in _own_names(task)):
        return True
    texts = [
        text for commit in task.environment.history for path, text in commit.files.items()
        if text is not None and _is_source(path)
    ]  # fmt: skip
    texts += [
        "\n".join(text for hunk in c.hunks for _, text in hunk.lines) for c in gold if _is_source(c.path)
    ]
    return any(_DEALS_WITH_PYTEST.search("\n".join(code_lines(text.split("\n")))) for text in texts)


def _is_source(path: str) -> bool:
    return path.endswith(".py") and not is_test_code(path)
