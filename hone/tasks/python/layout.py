"""The import paths of a tree, and the files that only its build writes."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

from hone.tasks.errors import TaskError
from hone.tasks.python.project import IMAGE, NO_SOURCES, Project

_TESTS = ("tests", "test", "testing")
_GENERATED_BYTES = 1 << 20  # larger files are generated data


def source_files(tree: Path) -> list[str]:
    """Return the sorted paths of all files below `tree`, without directories of tools."""
    found: list[str] = []
    for folder, folders, files in os.walk(tree):
        folders[:] = [name for name in folders if name not in NO_SOURCES]
        relative = PurePosixPath(Path(folder).relative_to(tree).as_posix())
        found += [str(relative / name) for name in files]
    return sorted(found)


def layout(tree: Path, project: Project) -> tuple[tuple[str, ...], dict[str, str]]:
    """Return the directories that Python imports from, most modules first, and the files of the build.

    The root is one of them when tests import helpers from it.

    Raises TaskError when the project installs packages under other names than their directories.
    """
    files = source_files(tree)
    places = _directories(project, files) if project.files else _default_directories(files)
    paths = list(dict.fromkeys(places.values()))
    if "" not in paths and _imports_tests(tree, files):
        paths.append("")
    return tuple(paths), _generated(project.files, places, set(files))


def _directories(project: Project, files: Iterable[str]) -> dict[str, str]:
    """Return top-level package or module -> its directory, those with most files first."""
    by_name: dict[str, list[str]] = {}
    for file in files:
        by_name.setdefault(file.rpartition("/")[2], []).append(file)
    votes: dict[str, Counter[str]] = {}
    modules = [name for name in project.files if name.endswith(".py")]
    for module in modules:
        counter = votes.setdefault(module.split("/")[0], Counter())
        for file in by_name.get(module.rpartition("/")[2], ()):
            if file == module or file.endswith(f"/{module}"):
                counter[file.removesuffix(module).rstrip("/")] += 1
    found = {
        top: min(counter.items(), key=lambda item: (-item[1], item[0].count("/"), item[0]))
        for top, counter in votes.items()
        if counter
    }
    if modules and not found:
        raise TaskError(
            f"{project.name} installs {modules[0]}, but no directory of the repository has that name: {IMAGE}"
        )
    return {top: place for top, (place, _) in sorted(found.items(), key=lambda item: -item[1][1])}


def _default_directories(files: Iterable[str]) -> dict[str, str]:
    """Return the directories of a tree without a distribution: `src` or `lib` with modules, and the root."""
    modules = [file.split("/") for file in files if file.endswith(".py")]
    beside = {parts[0] for parts in modules if len(parts) > 1 and parts[0] in ("src", "lib")}
    inside = {name: name for name in sorted(beside, reverse=True) if f"{name}/__init__.py" not in files}
    return {**inside, ".": ""}


def _generated(installed: Mapping[str, bytes], places: Mapping[str, str], files: set[str]) -> dict[str, str]:
    default = next(iter(places.values()), "")
    generated: dict[str, str] = {}
    for name, content in installed.items():
        place = places.get(name.split("/")[0], default)
        path = f"{place}/{name}" if place else name
        if path in files or len(content) > _GENERATED_BYTES:
            continue
        try:
            generated[path] = content.decode("utf-8")
        except UnicodeDecodeError:
            continue  # the workspace has only text
    return generated


def _imports_tests(tree: Path, files: Iterable[str]) -> bool:
    for file in files:
        top, _, rest = file.partition("/")
        if top in _TESTS and rest.endswith(".py"):
            text = (tree / file).read_text(encoding="utf-8", errors="replace")
            if re.search(rf"^\s*(?:from|import) {top}\b", text, re.MULTILINE):
                return True
    return False
