"""Exact versions of everything that a project and its tests need, by uv's resolver."""

from __future__ import annotations

import importlib.metadata
import tempfile
from collections.abc import Iterable
from pathlib import Path

from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from hone.tasks.configuration import HINDERING
from hone.tasks.errors import TaskError
from hone.tasks.python.files import Needs
from hone.tasks.python.tool import run_uv

_RUNNER = ("pytest", "pluggy", "iniconfig")  # Hone's test runner brings its own
_OF_RUNNER = ("attrs", "packaging")  # what a pytest of that year needs newer than older projects have it
_FIRST_RUNNER = "2022-12-31"  # the first pytest that Hone's runner can use is of that year
_UPPER = ("==", "===", "~=", "<", "<=")
_WHAT = "what the repository needs cannot be resolved"


def resolve(
    name: str, needed: Needs, tests: Needs, before: str = ""
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Sorted "name==version" of all that the project `name` (it may be empty) and its tests need, without
    the project itself; and those requirements of tests that are not met as written.

    Plugins are chosen to fit the pytest that runs Hone's tests; with `before`, a day, nothing is newer than
    that, and pytest is among them, as it was then (but 7 at least). Where nothing is needed, Hone's pytest
    serves. What the project needs is met as written or refused; what its tests need is tried once more
    without upper bounds and constraints.

    Raises TaskError when it cannot be resolved.
    """
    never = {*_RUNNER, *HINDERING, canonicalize_name(name)}
    own = [r for r in needed.requirements if canonicalize_name(r.name) not in never]
    theirs = [r for r in tests.requirements if canonicalize_name(r.name) not in never]
    if not own and not theirs:
        return (), tests.unmet
    try:
        found = _compile([*own, *theirs], [*needed.constraints, *tests.constraints], never, before)
        return found, tests.unmet
    except TaskError:
        changed = [r for r in theirs if _loosened(r) != r] + [
            r for r in tests.constraints if canonicalize_name(r.name) not in never
        ]
        if not changed:
            raise
        resolved = _compile([*own, *map(_loosened, theirs)], needed.constraints, never, before)
        return resolved, (*tests.unmet, *dict.fromkeys(map(str, changed)))


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
        # a condition that never holds takes a package out of the resolution, wherever it is asked for
        without = [name for name in never if name and name not in _RUNNER]
        overrides.write_text("".join(f"{name} ; python_version < '0'\n" for name in without))
        files = ["--constraints", str(bounds), "--overrides", str(overrides), str(wanted)]
        command = ["pip", "compile", "--quiet", "--no-header", "--annotation-style", "line", *files]
        out = run_uv([*command, *_dated(before)], what=_WHAT)
    return tuple(sorted(filter(None, (_pinned(line, runner=bool(before)) for line in out.splitlines()))))


def _dated(before: str) -> list[str]:
    """Options of uv: nothing newer than a day, but a pytest that serves."""
    if not before:
        return []
    runner = max(before, _FIRST_RUNNER)
    exempt = [f"--exclude-newer-package={name}={runner}" for name in (*_RUNNER, *_OF_RUNNER)]
    return ["--exclude-newer", before, *exempt]


def _pinned(line: str, *, runner: bool) -> str | None:
    """`name==version` of a line of uv's; None for what only the test runner needs, unless `runner`."""
    pin, _, via = (part.strip() for part in line.partition("#"))
    name, _, version = pin.partition("==")
    askers = {asker.strip() for asker in via.removeprefix("via").split(",")}
    if not pin or (not runner and (canonicalize_name(name) in _RUNNER or askers <= set(_RUNNER))):
        return None
    if not version or "@" in pin:
        raise TaskError(f"{_WHAT}: {pin} has no version on a package index")
    return pin


def _loosened(requirement: Requirement) -> Requirement:
    """Without upper bounds."""
    loose = Requirement(str(requirement))
    loose.specifier = SpecifierSet(",".join(str(s) for s in loose.specifier if s.operator not in _UPPER))
    return loose
