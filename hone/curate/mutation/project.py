"""The files of a commit: source that may be mutated, and tests."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import PurePosixPath

from hone.curate.files import Kind, kind_of
from hone.curate.journal import Journal
from hone.curate.mutation.candidates import Module
from hone.curate.runner import commit_environment
from hone.tasks.errors import TaskError
from hone.tasks.local import lock_commit
from hone.tasks.python import Locked
from hone.tasks.repository import Repository
from hone.types import Environment

_TEST_NAME = re.compile(r"test_.*\.py|.*_test\.py")  # as pytest collects
_NO_SOURCE = {
    "__main__.py",
    "__about__.py",
    "_version.py",
    "version.py",
    "conf.py",
    "conftest.py",
    "compat.py",
}
_NO_SOURCE |= {"_compat.py"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Project:
    modules: Mapping[str, Module]  # path -> source that may be mutated
    tests: Mapping[str, str]  # path -> text of the test files
    support: Mapping[str, str]  # path -> text of conftest.py and helpers beside the tests
    excluded_files: Mapping[str, str]  # path -> why it is not in `modules`


def read_project(
    repository: Repository, commit: str, paths: Sequence[str], chosen: Sequence[str] | None
) -> Project:
    """Read the Python files of a commit.

    Args:
        paths: directories that Python imports from; only files below them are source.
        chosen: directories, files or patterns of tests; None: all files that pytest would collect.
    Raises:
        TaskError: there is no test, or no source.
    """
    python = sorted(path for path in repository.files(commit) if path.endswith(".py"))
    texts = repository.texts(commit, python)
    excluded_files = {path: f"{path}: not UTF-8" for path in python if path not in texts}
    tests = {path: text for path, text in texts.items() if _is_test(path, chosen)}
    support = {p: t for p, t in texts.items() if p not in tests and _supports(p, tests)}
    modules: dict[str, Module] = {}
    for path, text in texts.items():
        if path in tests or path in support or not _is_source(path, paths):
            continue
        try:
            modules[path] = Module(path, text)
        except TaskError as error:
            excluded_files[path] = str(error)
    if not tests:
        which = f"matches {', '.join(chosen)}" if chosen else "is called test_*.py or *_test.py"
        raise TaskError(
            f"{repository.path} has no tests: no file {which}; name the project's, also unittest's, with "
            "--tests, such as --tests 'checks/*.py'"
        )
    if not modules:
        raise TaskError(f"{repository.path} has no Python source outside of its tests")
    return Project(modules=modules, tests=tests, support=support, excluded_files=excluded_files)


def _is_test(path: str, chosen: Sequence[str] | None) -> bool:
    if not chosen:
        return _TEST_NAME.fullmatch(PurePosixPath(path).name) is not None
    return any(_matches(path, pattern.rstrip("/")) for pattern in chosen)


def _matches(path: str, pattern: str) -> bool:
    """Return whether a pattern names the file, matches it, or is a directory above a test file."""
    file = PurePosixPath(path)
    if path == pattern or (any(c in pattern for c in "*?[") and file.match(pattern)):
        return True
    below = pattern in ("", ".") or any(str(parent) == pattern for parent in file.parents)
    return below and _TEST_NAME.fullmatch(file.name) is not None


def _supports(path: str, tests: Mapping[str, str]) -> bool:
    """Return whether a file is a helper of the tests."""
    return kind_of(path) is Kind.TEST and any(
        PurePosixPath(test).is_relative_to(PurePosixPath(path).parent) for test in tests
    )


def _is_source(path: str, paths: Sequence[str]) -> bool:
    file = PurePosixPath(path)
    if kind_of(path) is not Kind.SOURCE or file.name in _NO_SOURCE or "_vendor" in file.parts:
        return False
    return any(file.is_relative_to(root or ".") for root in paths)


async def find_environment(repository: Repository, commit: str, journal: Journal) -> Environment:
    """Return the environment; its requirements are resolved once and kept in the journal."""
    known = journal.get("locked")
    if known is None:
        known = dataclasses.asdict(await asyncio.to_thread(lock_commit, repository, commit))
        journal.put("locked", known)
    return commit_environment(repository, commit, Locked.from_json(known))
