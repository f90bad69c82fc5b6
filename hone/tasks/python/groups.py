"""Named groups of requirements: extras of a distribution and dependency groups of pyproject.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.poetry import poetry_groups
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
