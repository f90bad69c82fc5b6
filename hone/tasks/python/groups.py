"""Named groups of requirements: extras, and the dependency groups of pyproject.toml and Poetry."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.project import Project
from hone.tasks.python.requirements import Requirements, parse_all, parse_line

_WHERE = "pyproject.toml"


def groups(pyproject: Mapping[str, Any], project: Project) -> dict[str, Requirements]:
    """Return the requirements of each extra and group by canonical name; equal names are merged.

    Raises TaskError when a group cannot be parsed.
    """
    found: dict[str, Requirements] = {}
    tool = pyproject.get("tool", {})
    named: list[tuple[str, Requirements]] = list(project.extras.items())
    written = pyproject.get("dependency-groups", {})
    standard: dict[str, Any] = {canonicalize_name(name): lines for name, lines in written.items()}
    named += [(name, _standard(standard, name, ())) for name in standard]
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


def _standard(groups: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Requirements:
    """Return a group of `[dependency-groups]` with the groups that it includes."""
    if name in above or name not in groups:
        raise TaskError(f"{_WHERE}: the dependency group {name!r} does not exist or includes itself")
    requirements = Requirements()
    for item in groups[name]:
        if isinstance(item, str):
            requirements |= parse_line(item, _WHERE)
        elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
            requirements |= _standard(groups, canonicalize_name(item["include-group"]), (*above, name))
        else:
            raise TaskError(f"{_WHERE}: the dependency group {name!r} holds {item!r}, not a requirement")
    return requirements


_RELEASE = re.compile(r"v?(\d+(?:\.\d+)*)")


def poetry_groups(poetry: Mapping[str, Any]) -> list[tuple[str, Requirements]]:
    """Return name and requirements of each group of `[tool.poetry]`. Raises TaskError for an invalid one."""
    tables = [(name, table.get("dependencies", {})) for name, table in poetry.get("group", {}).items()]
    tables.append(("dev", poetry.get("dev-dependencies", {})))
    found: list[tuple[str, Requirements]] = []
    for group, table in tables:
        requirements = Requirements()
        for name, value in table.items():
            for one in value if isinstance(value, list) else [value]:
                requirements |= _dependency(name, one)
        found.append((group, requirements))
    return found


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
