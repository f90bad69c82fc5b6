"""Locking: the packages, import paths and generated files that the tests of a tree require."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.python.layout import layout
from hone.tasks.python.project import Project, read_project
from hone.tasks.python.requirements import Requirements, read_requirements
from hone.tasks.python.resolving import resolve
from hone.tasks.python.sources import test_requirements


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """The resolved requirements of a repository; most of it goes into the task's `Environment`."""

    requirements: tuple[str, ...]  # sorted, each "name==version", without the project and pytest
    distribution: str  # "name==version" of the project itself; "" when the tree is no distribution
    paths: tuple[str, ...]  # directories below the root that Python imports from; "" is the root
    generated: Mapping[str, str] = field(default_factory=dict[str, str])  # path -> text that the build writes

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
    """Return the requirements of the project, or of requirements.txt where the tree is no distribution."""
    path = tree / "requirements.txt"
    needed = project.requirements
    if not project.name and path.is_file():
        needed = read_requirements(path, tree)
    if needed.unavailable:
        raise TaskError(f"the repository depends on {needed.unavailable[0]}, which no package index has")
    return needed
