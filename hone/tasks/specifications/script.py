"""The evaluation script of a row that comes without one, as rows of SWE-bench's edition 4 do."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.rows import text, texts
from hone.tasks.specifications.record import Specification

# Files of a test patch that are no tests, by their endings; "csv" has no dot in the harness either.
_DATA_ENDINGS = (
    ".json", ".png", "csv", ".txt", ".md", ".jpg", ".jpeg", ".pkl", ".yml", ".yaml", ".toml",
)  # fmt: skip
_CHANGED = re.compile(r"^diff --git a/.* b/(.*)$", re.MULTILINE)
_KEPT = re.compile(r"^--- a/([^\t\n]*)", re.MULTILINE)  # not of a new file
_MYPY_CASE = re.compile(r"\[case ([^\]]+)\]")
_ACTIVATE = "source /opt/miniconda3/bin/activate\nconda activate testbed"
_WORKDIR = "/testbed"
_START, _END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"


def evaluation_script(specification: Specification, row: Mapping[str, Any]) -> str:
    """Return a script as rows of edition 5 have it: it installs, applies the test patch and runs the tests.

    It prints the markers of the test output and runs in the image of the row. SWE-smith's rows have no test
    patch: their images hold the tests, and the script commits the bug, unless the image has it already.

    Raises:
        TaskError: the row names no test to run, or the harness has no test command.
    """
    if not specification.test_command:
        raise TaskError(f"{specification.source} has no test command for {specification.repo}")
    patch = text(row, "test_patch", "")
    command = " ".join([specification.test_command, *test_directives(specification, row)])
    lines = [_ACTIVATE, f"cd {_WORKDIR}", *specification.eval_commands]
    lines.append(f"git config --global --add safe.directory {_WORKDIR}")
    if specification.data_set == "swe-smith":
        return _script([*lines, *_seed_bug(text(row, "patch", ""))], command, [])
    lines += [f"cd {_WORKDIR}", _ACTIVATE]
    if specification.install:
        lines.append(specification.install)
    reset = _reset(text(row, "base_commit", "HEAD"), patch)
    applied = [f"git apply -v - <<'{_delimiter(patch)}'\n{patch}\n{_delimiter(patch)}"] if patch else []
    return _script([*lines, *reset, *applied], command, reset)


def test_directives(specification: Specification, row: Mapping[str, Any]) -> list[str]:
    """Return what a harness writes behind the test command: files, modules or a pattern, as words of bash.

    Raises:
        TaskError: the row names no test to run.

    A test patch of data files alone gives none: the harness then runs the whole suite.

    Example: a test patch of `tests/admin_views/test_nav.py` gives ["admin_views.test_nav"] for Django, and
    the path itself for a repository with pytest.
    """
    patch = text(row, "test_patch", "")
    named = (*texts(row, "FAIL_TO_PASS"), *texts(row, "PASS_TO_PASS"))
    if specification.test_command.endswith(" -k"):  # mypy's, which names cases
        cases = _MYPY_CASE.findall(patch) if patch else sorted({test.rpartition("::")[2] for test in named})
        return [shlex.quote(" or ".join(cases))]
    if not patch:
        files = sorted({test.partition("::")[0] for test in named if "::" in test})
        if not files:
            raise TaskError("it has no test patch, and the names of its tests do not tell their files")
    else:
        files = [name for name in _CHANGED.findall(patch) if not name.endswith(_DATA_ENDINGS)]
    if specification.repo == "django/django":
        files = [_module(name) for name in files]
    return [shlex.quote(name) for name in files]


test_directives.__test__ = False  # type: ignore[attr-defined]  # pytest must not collect it


def _module(path: str) -> str:
    """Return the label of a test module of Django: `tests/a/test_b.py` is `a.test_b`."""
    return path.removesuffix(".py").removeprefix("tests/").replace("/", ".")


def _seed_bug(patch: str) -> list[str]:
    if not patch:
        return []
    end = _delimiter(patch)
    commit = "git -c user.name=Hone -c user.email=hone@localhost commit -qam 'The bug.'"
    return [f"git apply -v - <<'{end}' && {commit}\n{patch}\n{end}"]


def _reset(commit: str, patch: str) -> list[str]:
    """Return the command that restores the files of the test patch which the commit has."""
    files = list(dict.fromkeys(_KEPT.findall(patch)))
    return [f"git checkout {shlex.quote(commit)} {shlex.join(files)}"] if files else []


def _delimiter(patch: str) -> str:
    """Return the end of a here-document, which is no line of the patch."""
    name = "END_OF_PATCH"
    while name in patch:
        name += "_"
    return name


def _script(before: list[str], command: str, after: list[str]) -> str:
    lines = ["#!/bin/bash", "set -uxo pipefail", *before, _START, command, _END, *after]
    return "\n".join(lines) + "\n"
