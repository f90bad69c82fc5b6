"""Kinds of files in a repository, by their paths."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Collection
from enum import StrEnum
from pathlib import PurePosixPath


class Kind(StrEnum):
    SOURCE = "source"  # Python that users of the project import
    TEST = "test"  # tests, and every file below their directories
    DATA = "data"  # part of the source if it is in a package
    COMPILED = "compiled"
    OTHER = "other"  # documentation, change log, CI, packaging, tools: in no patch


_TEST_DIRECTORIES = {
    "test",
    "tests",
    "testsuite",
    "test_suite",
    "unit_tests",
    "unittests",
    "functional_tests",
}
_TEST_DIRECTORIES |= {"integration_tests", "e2e"}
_TEST_NAME = re.compile(r"test_.*\.py|.*_tests?\.py|tests\.py|conftest\.py")
_OTHER_DIRECTORIES = {"doc", "docs", "examples", "example", "benchmarks", "benchmark", "scripts", "tools"}
_OTHER_DIRECTORIES |= {"ci", "changes", "changelog", "newsfragments", "news", "bench", "build", "dist", "etc"}
_OTHER_NAMES = {"setup.py", "noxfile.py", "fabfile.py", "versioneer.py", "manage.py", "dodo.py"}
_COMPILED = {".c", ".h", ".cc", ".cpp", ".hpp", ".pyx", ".pxd", ".rs", ".f", ".f90", ".cu", ".so", ".pyd"}
_PROSE = {".rst", ".md", ".adoc"}


def kind_of(path: str, tests: Collection[str] = ()) -> Kind:
    """Return the kind of a file, by its path alone.

    Args:
        tests: globs of tests besides those in `test` directories or with the names of tests; see `matches`.
    """
    parts = PurePosixPath(path)
    folders, suffix = parts.parts[:-1], parts.suffix
    if _TEST_DIRECTORIES & set(folders) or folders[:1] == ("testing",) or _TEST_NAME.fullmatch(parts.name):
        return Kind.TEST
    if path == "test.py" or any(matches(path, pattern) for pattern in tests):
        return Kind.TEST
    if suffix in _COMPILED:
        return Kind.COMPILED
    top = folders[0] if folders else ""
    if top in _OTHER_DIRECTORIES or top.startswith(".") or "docs" in folders:
        return Kind.OTHER
    if suffix == ".py":
        return Kind.OTHER if parts.name in _OTHER_NAMES else Kind.SOURCE
    return Kind.OTHER if not folders or suffix in _PROSE else Kind.DATA


def matches(path: str, pattern: str) -> bool:
    """Return whether a glob matches a file or a directory around it.

    `*` also matches `/`. A glob without `/` may match the file's name alone.
    """
    file = PurePosixPath(path)
    places = [path, *map(str, file.parents), *([] if "/" in pattern else [file.name])]
    return any(fnmatch.fnmatchcase(place, pattern.rstrip("/")) for place in places)


def packages(paths: Collection[str]) -> set[str]:
    """Return the directories of a tree that are Python packages."""
    return {str(PurePosixPath(path).parent) for path in paths if PurePosixPath(path).name == "__init__.py"}


def is_inside(path: str, folders: Collection[str]) -> bool:
    return any(str(parent) in folders for parent in PurePosixPath(path).parents)
