"""What a tree needs to run its tests: packages, places to import from, files that its build writes."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hone.tasks.configuration import FILES, pytest_arguments
from hone.tasks.errors import TaskError
from hone.tasks.python.files import Needs, read_requirements
from hone.tasks.python.layout import layout
from hone.tasks.python.needs import tests_need
from hone.tasks.python.project import Project, read_project
from hone.tasks.python.resolving import resolve


@dataclass(frozen=True, slots=True, kw_only=True)
class Locked:
    """What a repository needs to run its tests here; most of it goes into the task's `Environment`."""

    requirements: tuple[str, ...]  # sorted, each "name==version", without the project and pytest
    distribution: str  # "name==version" of the project itself; "" when the tree is no distribution
    paths: tuple[str, ...]  # directories below the root that Python imports from; "" is the root
    generated: Mapping[str, str] = field(
        default_factory=dict[str, str]
    )  # path -> text the build writes there
    command: tuple[str, ...] = ()  # the pytest arguments of its own configuration that its tests depend on
    relaxed: tuple[str, ...] = ()  # requirements of the tests that are not met as written

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Locked:
        """Return the record whose `dataclasses.asdict` was written as JSON."""
        lists = {name: tuple(value) for name, value in fields.items() if isinstance(value, list | tuple)}
        return cls(**{**fields, **lists})


def lock(tree: Path, *, extras: Sequence[str] = (), version: str = "", before: str = "") -> Locked:
    """Find what the tests in `tree` need, resolved for the interpreter that runs Hone.

    The project is built once, from a copy, to learn its metadata and layout: that runs code of the
    repository, which is the user's own. `extras` are extras or dependency groups taken beside those that are
    called like tests. `version` is the project's where its build would ask version control, which is not in
    the tree. Requirements of tests that cannot be met as pinned are tried again without upper bounds, and
    named in `relaxed`. With `before` (a day, 2024-01-31), versions are of that day, pytest's too. Blocks, for
    minutes at worst; needs the package index.

    Raises TaskError when the project cannot be built, has compiled extensions, or needs what is not there.
    """
    if not tree.is_dir():
        raise TaskError(f"{tree} is not a directory")
    with tempfile.TemporaryDirectory(prefix="hone-lock-") as scratch:
        project = read_project(tree, Path(scratch), version)
    needed = _needed(tree, project)
    requirements, relaxed = resolve(project.name, needed, tests_need(tree, project, extras), before)
    paths, generated = layout(tree, project)
    configuration = [tree / name for name in FILES if (tree / name).is_file()]
    return Locked(
        requirements=requirements,
        distribution=f"{project.name}=={project.version}" if project.name else "",
        paths=paths,
        generated=generated,
        command=pytest_arguments({path.name: path.read_text("utf-8", "replace") for path in configuration}),
        relaxed=relaxed,
    )


def _needed(tree: Path, project: Project) -> Needs:
    """What the project itself needs; of a tree that is no distribution, its requirements.txt says so."""
    path = tree / "requirements.txt"
    needed = project.needs
    if not project.name and path.is_file():
        needed = read_requirements(path, tree)
    if needed.unmet:
        raise TaskError(f"the repository depends on {needed.unmet[0]}, which no package index has")
    return needed
