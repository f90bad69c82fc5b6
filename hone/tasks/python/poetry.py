"""Dependency groups of Poetry, with its operators `^` and `~`."""

from __future__ import annotations

import platform
import re
from collections.abc import Iterator, Mapping
from typing import Any

from packaging.markers import InvalidMarker, Marker
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet

from hone.tasks.errors import TaskError
from hone.tasks.python.requirements import Requirements

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
