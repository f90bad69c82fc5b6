"""Lock what a harness installs for a version of a repository, from its specification."""

from __future__ import annotations

import dataclasses
import re
import shlex
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError, Unresolvable
from hone.tasks.python.compiled import BUILD, check_compiler, has_extensions
from hone.tasks.python.interpreters import Interpreter, find_interpreter
from hone.tasks.python.locking import Locked
from hone.tasks.python.project import NO_SOURCES, Project, layout, read_ini, read_project, read_toml
from hone.tasks.python.steps import Step, edit_tree, steps_of
from hone.tasks.python.tool import pretended_version, run_uv
from hone.tasks.specifications import Specification

# Day on or before which each harness was published: swebench 4.1.0, SWE-Gym's fork, swesmith 0.0.9.
_PUBLISHED = {"swe-bench": "2025-09-11", "swe-gym": "2025-01-28", "swe-smith": "2026-02-28"}
_RUNNER = ("pytest", "pluggy", "iniconfig", "attrs", "packaging", "exceptiongroup", "tomli")
_TOOLS = ("setuptools", "wheel")  # of builds, which the interpreter decides rather than the day of a commit
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
_FAILURE = "what its specification installs cannot be resolved"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Days:
    """No version is newer than the day of the commit, except those of the exempt packages."""

    commit: str
    published: str
    exempt: frozenset[str] = frozenset()

    def options(self) -> list[str]:
        exempt = [f"--exclude-newer-package={name}={self.published}" for name in sorted(self.exempt)]
        return ["--exclude-newer", self.commit, *exempt]


def lock_specified(tree: Path, specification: Specification, *, version: str, day: str) -> Locked:
    """Resolve what the harness installs for the repository in `tree`, with the Python of its specification.

    Each of its steps keeps what earlier ones have chosen unless it requires another version, as pip does.
    Packages that the specification names, what its pins require, and pytest are as of the day on which the
    harness was published; all others are as of `day`. Packages of an environment.yml that exist for conda
    only, and commands for the whole system, are left out and named in `Locked.left_out`.

    The project's metadata are built: that runs code of the repository. Blocks for minutes at worst; needs the
    package index.

    Args:
        tree: the repository at the commit from which the harness makes its environment.
        version: of the project, for builds that ask version control.
        day: of that commit, such as 2024-01-31.
    Raises:
        TaskError: this machine does not have the Python, a command has no equivalent here, or a package
            cannot be resolved.
    """
    interpreter = find_interpreter(specification.python)
    with tempfile.TemporaryDirectory(prefix="hone-lock-") as scratch:
        edited = Path(scratch) / "tree"
        shutil.copytree(tree, edited, symlinks=True, ignore=shutil.ignore_patterns(*NO_SOURCES))
        left_out = edit_tree(specification, edited)
        steps = steps_of(specification, edited)
        days = _Days(commit=day, published=max(day, _published(specification)))
        compiled = has_extensions(edited)
        folder = Path(scratch) / "project"
        folder.mkdir()
        project = (
            _described(edited, specification, version)
            if compiled
            else read_project(edited, folder, version, interpreter=interpreter, newest=days.published)
        )
        uv = _Uv(interpreter=interpreter, scratch=Path(scratch), env=pretended_version(version))
        pins, missing = _resolve(uv, steps, edited, days)
        build = _build(uv, edited, pins, days) if compiled else ()
        paths, generated = layout(tree, project)
    never = canonicalize_name(project.name)
    return Locked(
        requirements=tuple(pin for pin in pins if canonicalize_name(pin.partition("==")[0]) != never),
        distribution=f"{project.name}=={project.version}" if project.name else "",
        paths=paths,
        generated=generated,
        python=interpreter.minor,
        build=build,
        left_out=(*left_out, *missing),
    )


def _published(specification: Specification) -> str:
    return _PUBLISHED.get(specification.data_set, "")


def _described(tree: Path, specification: Specification, version: str) -> Project:
    """Return name and version of a project that is compiled, without building it."""
    name = read_toml(tree / "pyproject.toml").get("project", {}).get("name")
    name = name or read_ini(tree / "setup.cfg").get("metadata", "name", fallback="")
    return Project(name=name or specification.repo.rpartition("/")[2], version=version)


def _build(uv: _Uv, tree: Path, pins: Sequence[str], days: _Days) -> tuple[str, ...]:
    """Return the build in the tree, which compiles for the distributions of the tests, and what it needs."""
    check_compiler()
    required = read_toml(tree / "pyproject.toml").get("build-system", {}).get("requires", ["setuptools"])
    known = {canonicalize_name(_name(pin)) for pin in pins} | {"oldest-supported-numpy"}
    lines = [line for line in required if canonicalize_name(_name(line)) not in known]
    made = uv.compile("build", [*pins, *lines], ["--exclude-newer", days.published], preferred=pins)
    variables = " ".join(f"{name}={shlex.quote(value)}" for name, value in uv.env.items())
    return (f"{variables} {BUILD}", *(pin for pin in made if pin not in pins))


def _resolve(uv: _Uv, steps: Sequence[Step], tree: Path, days: _Days) -> tuple[tuple[str, ...], list[str]]:
    """Return sorted "name==version" of all steps, and the optional packages that are left out."""
    official = [line for step in steps if step.official for line in step.requirements]
    pins = [line for line in official if "==" in line]
    closure = (
        [_name(pin) for pin in uv.compile("pins", pins, ["--exclude-newer", days.published])] if pins else []
    )
    exempt = frozenset(
        canonicalize_name(name) for name in (*map(_name, official), *closure, *_RUNNER, *_TOOLS)
    )
    days = dataclasses.replace(days, exempt=exempt)
    chosen: list[str] = []
    names: list[str] = []
    missing: list[str] = []
    source: list[str] = []  # of the project, once a step has installed it
    for step in [*steps, Step(requirements=("pytest",), official=True)]:
        wanted = list(step.requirements)
        if step.optional:
            wanted, absent = uv.available(wanted, days)
            missing += absent
        own = {canonicalize_name(_name(line)) for line in wanted}
        earlier = [name for name in names if canonicalize_name(name) not in own]
        if step.project:
            source = uv.sources(tree, step.extras)
        chosen = uv.compile("steps", [*wanted, *earlier], [*days.options(), *source], preferred=chosen)
        names += [_name(line) for line in wanted]
    return tuple(sorted(chosen)), missing


def _name(line: str) -> str:
    match = _NAME.match(line.strip())
    if match is None or "@" in line or "://" in line:
        raise TaskError(f"it installs {line!r}, which is not a package of an index")
    return match[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Uv:
    """Resolutions for one interpreter."""

    interpreter: Interpreter
    scratch: Path
    env: Mapping[str, str]

    def compile(
        self, name: str, lines: Iterable[str], options: Iterable[str], *, preferred: Sequence[str] = ()
    ) -> list[str]:
        """Return "name==version" of all that `lines` require; earlier choices are kept where they fit."""
        wanted, out = self.scratch / f"{name}.in", self.scratch / f"{name}.txt"
        wanted.write_text("".join(f"{line}\n" for line in lines))
        out.write_text("".join(f"{pin}\n" for pin in preferred))
        command = ["pip", "compile", "--quiet", "--no-header", "--no-annotate", "--output-file", str(out)]
        run_uv(
            [*command, str(wanted), *options], failure=_FAILURE, env=self.env, python=self.interpreter.path
        )
        return [line.partition(";")[0].strip() for line in out.read_text().splitlines() if "==" in line]

    def available(self, lines: Sequence[str], days: _Days) -> tuple[list[str], list[str]]:
        """Return the lines that the index has as wheels, with all that they require, and the others.

        Raises TaskError when the index does not answer.
        """
        binary = ["--only-binary", ":all:", *days.options()]
        try:
            self.compile("all", lines, binary)
        except Unresolvable:
            pass
        else:
            return list(lines), []
        found: list[str] = []
        absent: list[str] = []
        for line in lines:
            try:
                self.compile("one", [*found, line], binary)
            except Unresolvable:
                absent.append(line)
            else:
                found.append(line)
        return found, absent

    def sources(self, tree: Path, extras: Sequence[str]) -> list[str]:
        """Return the arguments that make the project's requirements part of a resolution."""
        for name in ("pyproject.toml", "setup.cfg", "setup.py"):
            if (tree / name).is_file() and (name != "pyproject.toml" or "project" in read_toml(tree / name)):
                chosen = tree / name
                if name == "setup.cfg" and (tree / "setup.py").is_file():
                    chosen = tree / "setup.py"
                return [str(chosen), *(f"--extra={extra}" for extra in extras)]
        return []
