"""What the commands of a specification install, step by step; commands for the whole system are left out."""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.requirements import requirement_lines
from hone.tasks.specifications import ENVIRONMENT_FILE, REQUIREMENTS_FILE, Specification

_PIP = re.compile(r"(?:\S*python[\d.]* -m |\S*)(?:uv )?pip3? install\b(.*)", re.DOTALL)
_SETUP = re.compile(r"\S*python[\d.]* (?:-\S+ )*setup\.py (?:develop|install|build|build_ext)\b.*", re.DOTALL)
_EXTRAS = re.compile(r"\.(?:/)?(?:\[([^\]]*)\])?")
_WITH_VALUE = ("-r", "--requirement", "-c", "--constraint", "-f", "--find-links", "-i", "--index-url",
    "--extra-index-url", "--config-settings", "-C")  # fmt: skip
_EDITS = ("sed", "grep")  # programs of commands that edit the tree
_CONDA_NAMES = {  # what a package of conda-forge is called on PyPI
    "iris": "scitools-iris",
    "pytables": "tables",
    "python-graphviz": "graphviz",
    "typing_extensions": "typing-extensions",
    "matplotlib-base": "matplotlib",
    "dask-core": "dask",
    "seaborn-base": "seaborn",
}
_EDIT_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One command that installs: packages, the project itself, or both."""

    requirements: tuple[str, ...] = ()  # lines of a requirements file
    official: bool = False  # named by the specification itself, not by a file of the repository
    optional: bool = False  # of an environment.yml, whose packages may exist for conda only
    project: bool = False
    extras: tuple[str, ...] = ()


def edit_tree(specification: Specification, tree: Path) -> list[str]:
    """Run the commands of `pre_install` that edit files of the tree; return the commands that are left out.

    Raises TaskError when such a command fails.
    """
    left_out: list[str] = []
    for command in specification.pre_install:
        if not _edits(command):
            left_out.append(command)
            continue
        try:
            done = subprocess.run(
                ["bash", "-c", command],
                cwd=tree,
                env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_EDIT_TIMEOUT_S,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise TaskError(f"`{command}` was not done after {_EDIT_TIMEOUT_S:g} s") from None
        if done.returncode:
            lines = done.stderr.decode("utf-8", "replace").strip().splitlines() or ["no output"]
            raise TaskError(f"`{command}` fails: {lines[-1]}")
    return left_out


def _edits(command: str) -> bool:
    """Return whether a command only runs sed and grep on files of the tree."""
    lexer = shlex.shlex(command, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    try:
        words = list(lexer)
    except ValueError:
        return False
    starts = [0, *(number + 1 for number, word in enumerate(words) if word in ("&&", "||", ";"))]
    programs = {words[start] for start in starts if start < len(words)}
    paths = [word for word in words if word.startswith(("/", "~")) or ".." in word.split("/")]
    special = set("".join(words)) & set("`") or any(word in (">", "<", "|", "&", ">>") for word in words)
    return bool(programs) and programs <= set(_EDITS) and not paths and not special and "$(" not in command


def steps_of(specification: Specification, tree: Path) -> list[Step]:
    """Return what the harness installs, in its order. Raises TaskError for a command without an equivalent.

    Args:
        tree: of the repository, edited; it has the files of requirements.
    """
    steps = [_packages(specification, tree)]
    pip = [word for item in specification.pip_packages for word in shlex.split(item)]
    if pip:
        steps.append(_pip(pip, tree))
    check_install(specification)
    for command in _commands(specification.install):
        match = _PIP.fullmatch(command)
        steps.append(_pip(shlex.split(match[1]), tree) if match else Step(project=True))
    return [step for step in steps if step != Step()]


def check_install(specification: Specification) -> None:
    """Raise TaskError for an install command that has no equivalent without an image."""
    for command in _commands(specification.install):
        if not (_PIP.fullmatch(command) or _SETUP.fullmatch(command)):
            raise TaskError(f"its install command `{command}` runs in its image only")


def installs_project(command: str) -> bool:
    """Return whether a line of bash installs or builds the project of the current directory."""
    match = _PIP.fullmatch(command.strip())
    if match is None:
        return _SETUP.fullmatch(command.strip()) is not None
    try:
        return any(map(_EXTRAS.fullmatch, shlex.split(match[1])))
    except ValueError:
        return False


def _commands(text: str) -> Iterator[str]:
    for command in re.split(r"\s*(?:;|&&|\n)\s*", text.strip()):
        if command:
            yield command


def _packages(specification: Specification, tree: Path) -> Step:
    if specification.packages not in (REQUIREMENTS_FILE, ENVIRONMENT_FILE):
        lines = [_of_conda(word) for word in shlex.split(specification.packages)]
        return Step(requirements=_installable(lines), official=True)
    path = next(
        (path for path in (tree / each for each in specification.packages_files) if path.is_file()), None
    )
    if path is None:
        files = ", ".join(specification.packages_files) or specification.packages
        raise TaskError(f"it installs what {files} requires, and the repository does not have that file")
    if specification.packages == REQUIREMENTS_FILE:
        return Step(requirements=tuple(requirement_lines(path, tree)))
    return Step(requirements=_installable(_environment(path)), optional=True)


def _environment(path: Path) -> list[str]:
    """Return the packages of an environment.yml, its `pip` list included, as lines of a requirements file."""
    try:
        listed = yaml.safe_load(path.read_text("utf-8"))["dependencies"]
    except (OSError, yaml.YAMLError, KeyError, TypeError) as error:
        raise TaskError(f"{path.name} cannot be read: {error}") from None
    lines: list[str] = []
    for entry in listed:
        if isinstance(entry, str):
            lines.append(_of_conda(entry))
        elif isinstance(entry, dict):
            lines += [line for line in entry.get("pip", ()) if isinstance(line, str)]
    return lines


def _of_conda(package: str) -> str:
    """Return a package specification of conda as a line of a requirements file.

    >>> _of_conda("numpy=1.17"), _of_conda("iris>=2")
    ('numpy==1.17.*', 'scitools-iris>=2')
    """
    name, bounds = re.fullmatch(r"\s*(?:[\w-]+::)?([\w.-]+)\s*(.*)", package, re.DOTALL).groups()  # type: ignore[union-attr]
    name = _CONDA_NAMES.get(name.lower(), name)
    if single := re.fullmatch(r"=\s*([\w.]+)(?:=\S*)?", bounds):
        return f"{name}=={single[1]}.*"
    return f"{name}{bounds.strip()}"


def _installable(lines: Iterable[str]) -> tuple[str, ...]:
    never = {"python", "pip"}
    return tuple(line for line in lines if canonicalize_name(re.split(r"[^\w.-]", line)[0]) not in never)


def _pip(words: list[str], tree: Path) -> Step:
    """Return the step of the arguments of `pip install`."""
    lines: list[str] = []
    project, extras = False, ""
    rest = iter(words)
    for word in rest:
        if word in ("-r", "--requirement"):
            lines += requirement_lines(tree / next(rest, ""), tree)
        elif word in _WITH_VALUE:
            next(rest, None)
        elif word.startswith("-"):
            continue
        elif itself := _EXTRAS.fullmatch(word):
            project, extras = True, itself[1] or ""
        else:
            lines.append(word)
    names = tuple(name.strip() for name in extras.split(",") if name.strip())
    return Step(requirements=_installable(lines), official=True, project=project, extras=names)
