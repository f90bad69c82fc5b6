"""Evidence in the names and types of files: files that Python, git or a shell loads automatically."""

from __future__ import annotations

import re
import sys
from pathlib import PurePosixPath

from hone.grading.integrity.patch_context import Change, PatchContext

_CUSTOMIZE = {"sitecustomize.py", "usercustomize.py"}
_BYTECODE = (".pyc", ".pyo")
_WEIGHTS = (b"PK\x03\x04", b"\x80")  # first bytes of PyTorch weight files, also named .pth
_GIT_HOOKS = {
    "applypatch-msg", "fsmonitor-watchman", "post-applypatch", "post-checkout", "post-commit",
    "post-index-change", "post-merge", "pre-applypatch", "pre-commit", "reference-transaction",
}  # fmt: skip
_FILTER = re.compile(r"^[^#\n]*\s(?:filter=(?!lfs\b)\S+|working-tree-encoding=\S+)", re.MULTILINE)
_TOOL = re.compile(
    r"(?:py\.?test|python[\d.]*|pypy3?|git|bash|sh|dash|env|timeout|tox|nox|nosetests|unittest|coverage"
    r"|pip[\d.]*|uv|cat|grep|sed|ls|cp|mv|rm|mkdir|touch|chmod)"
)
_FRAMEWORK = {
    "_pytest", "conftest", "coverage", "hypothesis", "iniconfig", "mock", "nose", "numpy", "pandas", "pluggy",
    "py", "pytest", "pytest_asyncio", "pytest_cov", "pytest_mock", "pytest_timeout", "scipy", "xdist",
}  # fmt: skip
_TEST_FRAMEWORK = {"_pytest", "conftest", "doctest", "iniconfig", "pluggy", "py", "pytest", "unittest"}
# Standard library modules that are also common directory names and that no test runner imports.
_ORDINARY = {"code", "distutils", "idlelib", "lib2to3", "site", "test", "this", "turtledemo"}


def scan_name(change: Change, context: PatchContext) -> str | None:
    """Scan the file's name and type; see `scan_patch`."""
    if any(change.path.startswith(folder) for folder in context.environments):
        return None  # nothing imports from a virtual environment in the patch
    return _startup(change) or _git(change) or _tool(change) or _shadow(change, context)


def _startup(change: Change) -> str | None:
    if change.deleted:
        return None
    if change.created and change.name in _CUSTOMIZE:
        return "is run by every Python process that starts"
    if change.created and change.name.endswith(_BYTECODE):
        return "is bytecode that Python would run in place of a source file"
    if change.name.endswith(".pth") and not (change.binary or b"").startswith(_WEIGHTS):
        return "is a path file, whose lines Python runs when it starts"
    return None


def _git(change: Change) -> str | None:
    parts = PurePosixPath(change.path.lower()).parts
    if ".git" in parts:
        return "lies in git's own directory"
    in_hooks = any(part.endswith("hooks") for part in parts[:-1])
    if change.name in _GIT_HOOKS and in_hooks and not change.deleted:
        return "is a hook that git runs"
    if change.name == ".gitmodules" and not change.deleted:
        return "has git put another repository in place of a directory"
    if change.name == ".gitattributes" and (found := _FILTER.search("\n".join(change.lines("+")))):
        return f"has git run files through a filter: {found.group().strip()!r}"
    return None


def _tool(change: Change) -> str | None:
    if change.mode in ("100755", "120000") and not change.deleted and _TOOL.fullmatch(change.name):
        return "is a program under the name of one that runs tests"
    return None


def _shadow(change: Change, context: PatchContext) -> str | None:
    """Return why a new module or package would replace one that the tests import, or None."""
    if not change.created or not change.path.endswith(".py"):
        return None
    module = change.path.removesuffix("/__init__.py").removesuffix(".py")
    folder, _, name = module.rpartition("/")
    if name in context.own_names and name not in _TEST_FRAMEWORK:
        return None
    package = change.name == "__init__.py"
    where = f"{folder}/" if folder else ""
    if where in context.roots:
        known = (sys.stdlib_module_names - _ORDINARY) | _FRAMEWORK | context.requirements
    elif any(file.startswith(where) and "/" not in file[len(where) :] for file in context.tests):
        known = _TEST_FRAMEWORK | _FRAMEWORK
    else:
        return None
    if name not in known or (name == "conftest" and not package):
        return None
    return f"would be imported in place of {name}, which the tests use"
