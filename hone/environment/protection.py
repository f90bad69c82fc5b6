"""Remove from a patch what must not reach the tests: protected paths and links out of the repository."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath

from hone.environment.errors import PatchRefused
from hone.environment.patch import HUNK, FilePatch, parse_patch
from hone.tasks.configuration import FILES

# Read by pytest or Python before or beside the tests, in any directory.
PROTECTED_NAMES = {*FILES, "conftest.py", "sitecustomize.py", "usercustomize.py"}
PROTECTED_SUFFIXES = (".pth", ".pyc", ".pyo")
PROTECTED_DIRECTORIES = {"__pycache__", ".pytest_cache"}
PROTECTED_DIRECTORY_SUFFIXES = (".egg-info", ".dist-info")  # hold plugins' entry points, beside any module


@dataclass(frozen=True, slots=True, kw_only=True)
class FilteredPatch:
    """A patch without its changes of protected paths."""

    text: str
    paths: tuple[str, ...]  # changed by `text`
    removed_paths: tuple[str, ...]  # protected paths whose changes were dropped


def filter_patch(patch: str, protected: Iterable[str]) -> FilteredPatch:
    """Drop changes of protected paths: those given, configuration of pytest and Python, git's own files.

    Args:
        protected: paths below the repository; one that ends in "/" protects the whole directory.
    Raises:
        PatchRefused: the patch is malformed, reaches outside the repository or adds a link that does.
    """
    protected = set(protected)
    kept: list[FilePatch] = []
    removed: list[str] = []
    for part in parse_patch(patch):
        if any(is_protected(path, protected) for path in part.paths):
            removed += part.paths
        else:
            _check_link(part)
            kept.append(part)
    return FilteredPatch(
        text="".join(part.text for part in kept),
        paths=tuple(path for part in kept for path in part.paths),
        removed_paths=tuple(removed),
    )


def is_protected(path: str, protected: set[str]) -> bool:
    """Return whether a patch may not change `path`; see `filter_patch`."""
    parts = PurePosixPath(path).parts
    if any(part.lower().startswith(".git") or part in PROTECTED_DIRECTORIES for part in parts):
        return True
    if any(part.endswith(PROTECTED_DIRECTORY_SUFFIXES) for part in parts):
        return True
    if parts[-1] in PROTECTED_NAMES or parts[-1].endswith(PROTECTED_SUFFIXES):
        return True
    # a file in a protected directory; or a file that would replace a parent of a protected one
    return any(
        path == entry or entry.startswith(path + "/") or (entry.endswith("/") and path.startswith(entry))
        for entry in protected
    )


def _check_link(part: FilePatch) -> None:
    """Raise PatchRefused for a link that leaves the repository, or for anything but a file or a link."""
    header = part.text.split("@@", 1)[0]
    modes = set(re.findall(r"^(?:new file mode|new mode|index [0-9a-f.]+) (\d+)$", header, re.MULTILINE))
    if modes - {"100644", "100755", "120000"}:
        raise PatchRefused(f"{part.paths[-1]} is not a file or a link (mode {', '.join(sorted(modes))})")
    if "120000" not in modes:
        return
    if "GIT binary patch" in part.text:
        raise PatchRefused(f"{part.paths[-1]} is a link in binary form")
    for line in _added_lines(part.text):
        target = posixpath.normpath(posixpath.join(posixpath.dirname(part.paths[-1]), line))
        if line.startswith("/") or target == ".." or target.startswith("../"):
            raise PatchRefused(f"{part.paths[-1]} is a link to {line!r}, outside the repository")


def _added_lines(text: str) -> Iterator[str]:
    """Yield the lines that the hunks of one part add."""
    inside = False
    for line in text.split("\n"):
        if HUNK.match(line):
            inside = True
        elif inside and line.startswith("+"):
            yield line[1:]
