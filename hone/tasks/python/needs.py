"""What a project's tests need beside the project: extras, dependency groups, requirements files, tox."""

from __future__ import annotations

import ast
import dataclasses
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from packaging.utils import canonicalize_name

from hone.tasks.errors import TaskError
from hone.tasks.python.files import Needs, parse_line, parse_lines, read_requirements
from hone.tasks.python.groups import groups
from hone.tasks.python.project import Project, read_ini, read_toml

_TEST = ("test", "tests", "testing", "pytest", "unit", "unit-tests", "unittest", "unittests")
_DEV = ("dev", "develop", "development", "dev-dependencies")
# Among what developers install: tools that are run, not imported by tests.
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


def tests_need(tree: Path, project: Project, extras: Sequence[str]) -> Needs:
    """The requirements of the first place that names any, and those of `extras` in any case.

    The places, in order: extras and dependency groups called like tests; requirements files called so;
    `tests_require`; groups, then files, called like development; the dependencies of tox.

    Raises TaskError when one of `extras` is nowhere, or a place cannot be read.
    """
    known = groups(read_toml(tree / "pyproject.toml"), project)
    found = Needs()
    for name in map(canonicalize_name, extras):
        if name not in known:
            has = ", ".join(sorted(known)) or "none"
            raise TaskError(f"the repository has no extra or dependency group {name!r}; it has: {has}")
        found |= known[name]
    places: tuple[Callable[[], Needs], ...] = (
        lambda: _named(known, _TEST),
        lambda: _files(tree, _TEST),
        lambda: _tests_require(tree),
        lambda: _without_tools(_named(known, _DEV)),
        lambda: _without_tools(_files(tree, _DEV)),
        lambda: _tox(tree),
    )
    found |= next(filter(None, (place() for place in places)), Needs())
    return _with_own_extras(found, project, known)


def _named(known: Mapping[str, Needs], names: Sequence[str]) -> Needs:
    needs = Needs()
    for name in names:
        needs |= known.get(name, Needs())
    return needs


def _files(tree: Path, names: Sequence[str]) -> Needs:
    needs = Needs()
    for pattern in _FILES:
        for name in names:
            # what people wrote, rather than what a tool once pinned from it
            written = [tree / f"{pattern.format(name)}{suffix}" for suffix in (".in", ".txt")]
            path = next(filter(Path.is_file, written), None)
            if path is not None:
                needs |= read_requirements(path, tree)
    return needs


def _without_tools(needs: Needs) -> Needs:
    names = ((r, canonicalize_name(r.name)) for r in needs.requirements)
    left = tuple(r for r, name in names if name not in _TOOLS and "sphinx" not in name)
    return dataclasses.replace(needs, requirements=left)


def _tests_require(tree: Path) -> Needs:
    """`tests_require` of setup.cfg, or of setup.py where it is a plain list."""
    setup = tree / "setup.py"
    text = read_ini(tree / "setup.cfg").get("options", "tests_require", fallback="")
    needs = parse_lines(text, tree / "setup.cfg", tree)
    if not setup.is_file():
        return needs
    try:
        module = ast.parse(setup.read_text(encoding="utf-8", errors="replace"))
    except (SyntaxError, ValueError):
        return needs  # the build has said what is wrong with it
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
                    needs |= parse_line(item.value, "setup.py")
    return needs


def _tox(tree: Path) -> Needs:
    """`deps` of [testenv] in tox.ini; lines for one environment only, or made of other sections, are not."""
    needs = Needs()
    for line in read_ini(tree / "tox.ini").get("testenv", "deps", fallback="").splitlines():
        plain = line.strip().replace("{toxinidir}/", "").replace("{tox_root}/", "")
        if not re.match(r"[!\w\-.,{}]+:\s", plain) and "{" not in plain:
            needs |= parse_lines(plain, tree / "tox.ini", tree)
    return needs


def _with_own_extras(needs: Needs, project: Project, known: Mapping[str, Needs]) -> Needs:
    """With what `project[extra]` stands for, in place of the project's own name."""
    own = canonicalize_name(project.name)
    seen: set[str] = set()
    waiting = list(needs.extras)
    result = Needs(constraints=needs.constraints, unmet=needs.unmet)
    fresh = needs
    while True:
        waiting += [e for r in fresh.requirements if canonicalize_name(r.name) == own for e in r.extras]
        others = tuple(r for r in fresh.requirements if canonicalize_name(r.name) != own)
        result |= Needs(requirements=others)
        names = {canonicalize_name(name) for name in waiting} - seen
        if not names:
            return result
        seen |= names
        fresh = _named(known, sorted(names))
        waiting = list(fresh.extras)
        result |= Needs(constraints=fresh.constraints, unmet=fresh.unmet)
