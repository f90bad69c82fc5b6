"""Named groups of requirements: a distribution's extras, and the dependency groups of pyproject.toml."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.files import Needs, parse_all, parse_line
from hone.tasks.python.poetry import poetry_groups
from hone.tasks.python.project import Project

_WHERE = "pyproject.toml"


def groups(pyproject: Mapping[str, Any], project: Project) -> dict[str, Needs]:
    """Canonical name -> what the extra or group of that name needs; where both exist, the two together.

    Raises TaskError when a group cannot be read.
    """
    found: dict[str, Needs] = {}
    tool = pyproject.get("tool", {})
    named: list[tuple[str, Needs]] = list(project.extras.items())
    written = pyproject.get("dependency-groups", {})
    standard: dict[str, Any] = {canonicalize_name(name): lines for name, lines in written.items()}
    named += [(name, _standard(standard, name, ())) for name in standard]
    pdm = tool.get("pdm", {}).get("dev-dependencies", {})
    named += [(name, parse_all(lines, _WHERE)) for name, lines in pdm.items()]
    named.append(("dev", parse_all(tool.get("uv", {}).get("dev-dependencies", ()), _WHERE)))
    for name, environment in tool.get("hatch", {}).get("envs", {}).items():
        lines = [*environment.get("dependencies", ()), *environment.get("extra-dependencies", ())]
        own = Needs(extras=tuple(map(canonicalize_name, environment.get("features", ()))))
        usual = {"hatch-test": "test", "default": "dev"}.get(name) or name
        named.append((usual, parse_all(lines, _WHERE) | own))
    named += poetry_groups(tool.get("poetry", {}))
    for name, needs in named:
        found[canonicalize_name(name)] = found.get(canonicalize_name(name), Needs()) | needs
    return found


def _standard(groups: Mapping[str, Any], name: str, above: tuple[str, ...]) -> Needs:
    """A group of `[dependency-groups]` with those it includes."""
    if name in above or name not in groups:
        raise TaskError(f"{_WHERE}: the dependency group {name!r} is not there, or includes itself")
    needs = Needs()
    for item in groups[name]:
        if isinstance(item, str):
            needs |= parse_line(item, _WHERE)
        elif isinstance(item, dict) and isinstance(item.get("include-group"), str):
            needs |= _standard(groups, canonicalize_name(item["include-group"]), (*above, name))
        else:
            raise TaskError(f"{_WHERE}: the dependency group {name!r} holds {item!r}, not a requirement")
    return needs
