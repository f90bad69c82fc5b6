"""Where projects declare the requirements of their tests: extras, groups, requirements files, tox."""

from __future__ import annotations

import ast
import dataclasses
import platform
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from packaging.dependency_groups import resolve_dependency_groups
from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.project import Project, read_ini, read_toml
from hone.tasks.python.requirements import Requirements, parse_all, parse_line, parse_lines, read_requirements

_TEST = ("test", "tests", "testing", "pytest", "unit", "unit-tests", "unittest", "unittests")
_DEV = ("dev", "develop", "development", "dev-dependencies")
# Tools in development requirements that tests do not import.
_TOOLS = frozenset((
    "bandit", "black", "build", "bump-my-version", "bump2version", "bumpversion", "check-manifest",
    "codespell", "doc8", "flake8", "furo", "hatch", "ipdb", "ipython", "isort", "jupyter", "mkdocs",
    "mkdocs-material", "mypy", "nox", "pdm", "pip", "pip-tools", "poetry", "pre-commit", "pylint", "pyright",
    "pyupgrade", "ruff", "tox", "tox-uv", "twine", "ty", "uv", "wheel",
))  # fmt: skip
_FILES = (
    "requirements-{}", "requirements_{}", "{}-requirements", "{}_requirements", "requirements/{}",
    "requirements/requirements-{}", "requirements/{}-requirements", "{}/requirements",
)  # fmt: skip


def test_requirements(tree: Path, project: Project) -> Requirements:
    """Return the requirements of the first source that has any.

    The sources in order: extras and dependency groups named like tests; requirements files named like tests;
    `tests_require`; groups, then files, named like development; dependencies of tox.

    Raises TaskError when a source cannot be parsed.
    """
    known = groups(read_toml(tree / "pyproject.toml"), project)
    places: tuple[Callable[[], Requirements], ...] = (
        lambda: _named(known, _TEST),
        lambda: _files(tree, _TEST),
        lambda: _tests_require(tree),
        lambda: _without_tools(_named(known, _DEV)),
        lambda: _without_tools(_files(tree, _DEV)),
        lambda: _tox(tree),
    )
    found = next(filter(None, (place() for place in places)), Requirements())
    return _with_own_extras(found, project, known)


def _named(known: Mapping[str, Requirements], names: Sequence[str]) -> Requirements:
    return Requirements.union(known[name] for name in names if name in known)


def _files(tree: Path, names: Sequence[str]) -> Requirements:
    requirements = Requirements()
    for pattern in _FILES:
        for name in names:
            # the source of pip-compile rather than its output
            written = [tree / f"{pattern.format(name)}{suffix}" for suffix in (".in", ".txt")]
            path = next(filter(Path.is_file, written), None)
            if path is not None:
                requirements |= read_requirements(path, tree)
    return requirements


def _without_tools(requirements: Requirements) -> Requirements:
    names = ((r, canonicalize_name(r.name)) for r in requirements.requirements)
    left = tuple(r for r, name in names if name not in _TOOLS and "sphinx" not in name)
    return dataclasses.replace(requirements, requirements=left)


def _tests_require(tree: Path) -> Requirements:
    """Return `tests_require` of setup.cfg, or of setup.py where it is a literal list."""
    setup = tree / "setup.py"
    text = read_ini(tree / "setup.cfg").get("options", "tests_require", fallback="")
    requirements = parse_lines(text, tree / "setup.cfg", tree)
    if not setup.is_file():
        return requirements
    try:
        module = ast.parse(setup.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return requirements  # the build has reported the error
    names = {
        target.id: node.value
        for node in ast.walk(module)
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    for node in ast.walk(module):
        if isinstance(node, ast.keyword) and node.arg == "tests_require":
            value = names.get(node.value.id) if isinstance(node.value, ast.Name) else node.value
            for item in value.elts if isinstance(value, ast.List | ast.Tuple) else ():
                if isinstance(item, ast.Constant) and isinstance(item.value, str):
                    requirements |= parse_line(item.value, "setup.py")
    return requirements


def _tox(tree: Path) -> Requirements:
    """Return `deps` of [testenv] in tox.ini, without lines for single environments or with substitutions."""
    requirements = Requirements()
    for line in read_ini(tree / "tox.ini").get("testenv", "deps", fallback="").splitlines():
        plain = line.strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        if not re.match(r"[!\w\-.,{}]+:\s", plain) and "{" not in plain:
            requirements |= parse_lines(plain, tree / "tox.ini", tree)
    return requirements


def _with_own_extras(
    requirements: Requirements, project: Project, known: Mapping[str, Requirements]
) -> Requirements:
    """Return requirements with `project[extra]` replaced by the requirements of that extra."""
    own = canonicalize_name(project.name)
    seen: set[str] = set()
    waiting = list(requirements.extras)
    result = Requirements(constraints=requirements.constraints, unavailable=requirements.unavailable)
    fresh = requirements
    while True:
        waiting += [e for r in fresh.requirements if canonicalize_name(r.name) == own for e in r.extras]
        others = tuple(r for r in fresh.requirements if canonicalize_name(r.name) != own)
        result |= Requirements(requirements=others)
        names = {canonicalize_name(name) for name in waiting} - seen
        if not names:
            return result
        seen |= names
        fresh = _named(known, sorted(names))
        waiting = list(fresh.extras)
        result |= Requirements(constraints=fresh.constraints, unavailable=fresh.unavailable)


_WHERE = "pyproject.toml"


def groups(pyproject: Mapping[str, Any], project: Project) -> dict[str, Requirements]:
    """Return the requirements of each extra and group by canonical name; equal names are merged.

    Raises TaskError when a group cannot be parsed.
    """
    found: dict[str, Requirements] = {}
    tool = pyproject.get("tool", {})
    named: list[tuple[str, Requirements]] = list(project.extras.items())
    standard = pyproject.get("dependency-groups", {})
    try:
        resolved = {name: resolve_dependency_groups(standard, name) for name in standard}
    except ExceptionGroup as error:
        raise TaskError(f"{_WHERE}: {error.exceptions[0]}") from error
    named += [(name, parse_all(lines, _WHERE)) for name, lines in resolved.items()]
    pdm = tool.get("pdm", {}).get("dev-dependencies", {})
    named += [(name, parse_all(lines, _WHERE)) for name, lines in pdm.items()]
    named.append(("dev", parse_all(tool.get("uv", {}).get("dev-dependencies", ()), _WHERE)))
    for name, environment in tool.get("hatch", {}).get("envs", {}).items():
        lines = [*environment.get("dependencies", ()), *environment.get("extra-dependencies", ())]
        own = Requirements(extras=tuple(map(canonicalize_name, environment.get("features", ()))))
        usual = {"hatch-test": "test", "default": "dev"}.get(name) or name
        named.append((usual, parse_all(lines, _WHERE) | own))
    named += poetry_groups(tool.get("poetry", {}))
    for name, requirements in named:
        found[canonicalize_name(name)] = found.get(canonicalize_name(name), Requirements()) | requirements
    return found


_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


def poetry_groups(poetry: Mapping[str, Any]) -> list[tuple[str, Requirements]]:
    """Return name and requirements of each group of `[tool.poetry]`. Raises TaskError for an invalid one."""
    tables = [(name, table.get("dependencies", {})) for name, table in poetry.get("group", {}).items()]
    tables.append(("dev", poetry.get("dev-dependencies", {})))
    return [(group, Requirements.union(_dependencies(table))) for group, table in tables]


def _dependencies(table: Mapping[str, Any]) -> Iterator[Requirements]:
    for name, value in table.items():
        for one in value if isinstance(value, list) else [value]:
            yield _dependency(name, one)


def _dependency(name: str, value: Any) -> Requirements:
    if name == "python":
        return Requirements()
    table: Mapping[str, Any] = value if isinstance(value, dict) else {"version": value}
    try:
        if not SpecifierSet(specifiers(table.get("python", "*"))).contains(platform.python_version()):
            return Requirements()
        if "markers" in table and not Marker(table["markers"]).evaluate():
            return Requirements()
        if {"git", "path", "url", "file"} & set(table):
            return Requirements(unavailable=(name,))
        extras = f"[{','.join(table['extras'])}]" if table.get("extras") else ""
        return Requirements(
            requirements=(Requirement(f"{name}{extras}{specifiers(table.get('version', '*'))}"),)
        )
    except (InvalidMarker, InvalidRequirement, InvalidSpecifier, TypeError) as error:
        raise TaskError(f"pyproject.toml: {name} = {value!r} is not a dependency of Poetry") from error


def specifiers(constraint: str) -> str:
    """Return a version constraint of Poetry as standard specifiers; of alternatives (`||`) the last.

    >>> specifiers("^1.2")
    '>=1.2,<2'
    """
    parts = re.split(r"\s*,\s*|\s+(?=[<>=!~^])", constraint.split("||")[-1].strip())
    return ",".join(word for part in parts for word in _words(part.replace(" ", "")))


def _words(part: str) -> Iterator[str]:
    version = part.lstrip("<>=!~^")
    operator = part.removesuffix(version)
    release = _RELEASE.match(version)
    if operator in ("^", "~") and release:
        numbers = [int(number) for number in release.group(1).split(".")]
        kept = _caret(numbers) if operator == "^" else min(len(numbers), 2)
        yield f">={version}"
        yield "<" + ".".join(map(str, [*numbers[: kept - 1], numbers[kept - 1] + 1]))
    elif version not in ("", "*"):
        yield f"{'==' if operator in ('', '=') else operator}{version}"


def _caret(numbers: list[int]) -> int:
    """Return how many leading numbers `^` fixes: up to the first that is not zero."""
    return next((i for i, number in enumerate(numbers, start=1) if number), len(numbers))
