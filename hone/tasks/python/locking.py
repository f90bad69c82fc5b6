"""Lock what the tests of a tree require: packages (by uv's resolver), import paths, generated files."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from hone.tasks.configuration import EXCLUDED_PLUGINS
from hone.tasks.errors import TaskError, Unresolvable
from hone.tasks.python.project import Project, layout, read_project
from hone.tasks.python.requirements import Requirements, read_requirements
from hone.tasks.python.sources import test_requirements
from hone.tasks.python.tool import run_uv


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The resolved requirements of a repository; most of it goes into the task's `Environment`."""

    requirements: tuple[str, ...]  # sorted, each "name==version", without the project and pytest
    distribution: str  # "name==version" of the project itself; "" when the tree is not a distribution
    paths: tuple[str, ...]  # directories below the root that Python imports from; "" is the root
    generated: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> text that the build writes
    python: str = ""  # the version of the interpreter, such as "3.9"; "" is the one that runs Hone
    build: tuple[str, ...] = ()  # of its extensions; see `hone.types.Environment.build`
    left_out: tuple[str, ...] = ()  # packages and commands of a specification that have no equivalent here

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Locked:
        """Return the record whose `dataclasses.asdict` was written as JSON."""
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list | tuple)}
        return cls(**{**fields, **lists})


def lock(tree: Path, *, version: str = "", before: str = "") -> Locked:
    """Resolve the requirements of the tests in `tree` for the interpreter that runs Hone.

    The project is built once, from a copy, to learn its metadata and layout: that runs code of the
    repository, which is the user's own. Requirements of tests that cannot be met as pinned are tried again
    without upper bounds. Blocks, for minutes at worst; needs the package index.

    Args:
        version: of the project, for builds that ask version control, which is not in the tree.
        before: a day, such as 2024-01-31; all versions, pytest's too, are of that day.
    Raises:
        TaskError: the project cannot be built, has compiled extensions, or requires a missing package.
    """
    if not tree.is_dir():
        raise TaskError(f"{tree} is not a directory")
    with tempfile.TemporaryDirectory(prefix="hone-lock-") as scratch:
        project = read_project(tree, Path(scratch), version)
    needed = _project_requirements(tree, project)
    paths, generated = layout(tree, project)
    return Locked(
        requirements=resolve(project.name, needed, test_requirements(tree, project), before),
        distribution=f"{project.name}=={project.version}" if project.name else "",
        paths=paths,
        generated=generated,
    )


def _project_requirements(tree: Path, project: Project) -> Requirements:
    """Return the requirements of the project, or of requirements.txt where the tree is not a distribution."""
    path = tree / "requirements.txt"
    needed = project.requirements
    if not project.name and path.is_file():
        needed = read_requirements(path, tree)
    if needed.unavailable:
        raise TaskError(f"the repository depends on {needed.unavailable[0]}, which no package index has")
    return needed


_RUNNER = ("pytest", "pluggy", "iniconfig")  # Hone's test runner has its own
_OF_RUNNER = ("attrs", "packaging")  # which that pytest requires newer than old projects do
_FIRST_RUNNER = "2022-12-31"  # the release year of the oldest supported pytest
_UPPER = ("==", "===", "~=", "<", "<=")
_FAILURE = "the repository's requirements cannot be resolved"


def resolve(name: str, needed: Requirements, tests: Requirements, before: str = "") -> tuple[str, ...]:
    """Return sorted "name==version" of all requirements except the project.

    Requirements of the project are met exactly; those of its tests are tried once more without upper bounds
    and constraints. Plugins fit the pytest that runs Hone's tests.

    Args:
        name: of the project; may be empty.
        before: a day; no version is newer, and pytest (7 or later) is one of the requirements.
    Raises:
        TaskError: the requirements cannot be resolved, or the index does not answer.
    """
    never = {*_RUNNER, *EXCLUDED_PLUGINS, canonicalize_name(name)}
    own = [r for r in needed.requirements if canonicalize_name(r.name) not in never]
    theirs = [r for r in tests.requirements if canonicalize_name(r.name) not in never]
    if not own and not theirs:
        return ()
    try:
        return _compile([*own, *theirs], [*needed.constraints, *tests.constraints], never, before)
    except Unresolvable:
        relaxed = [_without_upper_bounds(r) for r in theirs]
        if relaxed == theirs and not tests.constraints:
            raise
        return _compile([*own, *relaxed], needed.constraints, never, before)


def _compile(
    requirements: Iterable[Requirement],
    constraints: Iterable[Requirement],
    never: Iterable[str],
    before: str,
) -> tuple[str, ...]:
    with tempfile.TemporaryDirectory(prefix="hone-resolve-") as folder:
        wanted, bounds, overrides = (Path(folder) / f"{part}.txt" for part in ("in", "bounds", "overrides"))
        wanted.write_text("".join(f"{r}\n" for r in (*requirements, *(["pytest"] if before else []))))
        runner = [f"{name}=={importlib.metadata.version(name)}" for name in _RUNNER]
        if before:
            runner = ["pytest>=7"]
        allowed = [str(r) for r in constraints if canonicalize_name(r.name) not in _RUNNER]
        bounds.write_text("".join(f"{line}\n" for line in [*runner, *allowed]))
        # a marker that never holds excludes a package from the resolution
        without = [name for name in never if name and name not in _RUNNER]
        overrides.write_text("".join(f"{name} ; python_version < '0'\n" for name in without))
        files = ["--constraints", str(bounds), "--overrides", str(overrides), str(wanted)]
        command = ["pip", "compile", "--quiet", "--no-header", "--annotation-style", "line", *files]
        out = run_uv([*command, *_dated(before)], failure=_FAILURE)
    return tuple(sorted(filter(None, (_pinned(line, runner=bool(before)) for line in out.splitlines()))))


def _dated(before: str) -> list[str]:
    """Return the options of uv for versions of a day, but with a supported pytest."""
    if not before:
        return []
    runner = max(before, _FIRST_RUNNER)
    exempt = [f"--exclude-newer-package={name}={runner}" for name in (*_RUNNER, *_OF_RUNNER)]
    return ["--exclude-newer", before, *exempt]


def _pinned(line: str, *, runner: bool) -> str | None:
    """Return `name==version` of a line of uv; None for packages that only the test runner requires."""
    pin, _, via = (part.strip() for part in line.partition("#"))
    name, _, version = pin.partition("==")
    askers = {asker.strip() for asker in via.removeprefix("via").split(",")}
    if not pin or (not runner and (canonicalize_name(name) in _RUNNER or askers <= set(_RUNNER))):
        return None
    if not version or "@" in pin:
        raise TaskError(f"{_FAILURE}: {pin} has no version on a package index")
    return pin


def _without_upper_bounds(requirement: Requirement) -> Requirement:
    """Return the requirement without upper bounds."""
    loose = Requirement(str(requirement))
    loose.specifier = SpecifierSet(",".join(str(s) for s in loose.specifier if s.operator not in _UPPER))
    return loose
