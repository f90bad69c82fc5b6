"""Where projects declare the requirements of their tests: extras, groups, requirements files, tox."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from hone.tasks.python.groups import groups
from hone.tasks.python.project import Project, read_ini, read_toml
from hone.tasks.python.requirements import Requirements, parse_line, parse_lines, read_requirements

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
    requirements = Requirements()
    for name in names:
        requirements |= known.get(name, Requirements())
    return requirements


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
