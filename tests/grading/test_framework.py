"""Repositories that are the test framework, or part of it: the tree is tested, not the installed copy."""

from __future__ import annotations

import dataclasses
import importlib.util
from pathlib import Path

import pytest

from hone.tasks.workspace import prepare
from hone.types import Verdict
from tests.grading.example import patch_of
from tests.grading.local import graded, local_task, read_no_patch
from tests.interpreters import shared_environment

pytestmark = pytest.mark.sandbox

KEPT = ("pytest", "_pytest", "pluggy", "iniconfig")  # which the runner loads before the gate opens
WITHOUT_PLUGGY = ("--no-deps", "pytest==9.0.3", "iniconfig==2.3.0", "packaging==26.2", "pygments==2.20.0")


def sources_of(module: str, folder: str) -> dict[str, str]:
    """Return the Python files of an installed package, below `folder`."""
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    (place,) = map(Path, spec.submodule_search_locations)
    return {f"{folder}/{module}/{path.relative_to(place)}": path.read_text() for path in place.rglob("*.py")}


def check_tree_is_tested(
    tmp_path: Path, module: str, files: dict[str, str], venv: Path | None, test: str
) -> None:
    """Grade a bug in `answer()` of a module of the framework: its fix, a comment, and its tests' edit."""
    (edited,) = [name for name in files if name.endswith(f"/{module}/__init__.py")]
    buggy = files[edited] + "\n\ndef answer():\n    return 41\n"
    task = local_task(
        tmp_path,
        {**files, edited: buggy, "testing/test_answer.py": test},
        ("src", ""),
        fail_to_pass=("testing/test_answer.py::test_answer",),
        gold_patch="",
    )
    base = prepare(task, tmp_path / "workspaces")
    texts = {"gold": buggy.replace("41", "42"), "comment": buggy + "# 42\n"}
    patches = {name: patch_of(base, tmp_path, {edited: text}) for name, text in texts.items()}
    checks = dataclasses.replace(task.checks, gold_patch=patches["gold"])
    found = graded(dataclasses.replace(task, checks=checks), patches, base.parent, venv)
    for name, verdict in found.items():
        assert isinstance(verdict, Verdict), (name, verdict)
        assert (verdict.resolved, verdict.tampered) == (name == "gold", None), (name, verdict)


def test_part_of_the_framework_is_tested_beside_the_installed_one(tmp_path: Path) -> None:
    test = "import pluggy\n\n\ndef test_answer():\n    assert pluggy.answer() == 42\n"
    check_tree_is_tested(tmp_path, "pluggy", sources_of("pluggy", "src"), None, test)


@pytest.mark.full
def test_part_of_the_framework_that_only_the_repository_has_is_tested(tmp_path: Path) -> None:
    test = "import pluggy\n\n\ndef test_answer():\n    assert pluggy.answer() == 42\n"
    venv = shared_environment("3.11", *WITHOUT_PLUGGY)
    check_tree_is_tested(tmp_path, "pluggy", sources_of("pluggy", "src"), venv, test)


@pytest.mark.full
def test_repository_of_pytest_runs_its_own_tests(tmp_path: Path) -> None:
    test = "import pytest\n\n\ndef test_answer(pytester):\n    assert pytest.answer() == 42\n"
    files = {**sources_of("pytest", "src"), **sources_of("_pytest", "src")}
    files["pytest.ini"] = "[pytest]\naddopts = -p pytester\n"
    check_tree_is_tested(tmp_path, "pytest", files, None, test)


@pytest.mark.full
def test_module_that_a_patch_adds_is_not_the_framework(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_no_patch(monkeypatch)
    buggy = "def add(a, b):\n    return a - b\n"
    test = (
        "import pluggy\nimport pytest\n\nfrom stats import add\n\n\n"
        "def test_add():\n    assert add(1, 1) == 2\n"
    )
    task = local_task(
        tmp_path,
        {"stats.py": buggy, "tests/test_stats.py": "def test_nothing():\n    pass\n"},
        fail_to_pass=("tests/test_stats.py::test_add",),
        test_files={"tests/test_stats.py": test},
        gold_patch="",
    )
    base = prepare(task, tmp_path / "workspaces")
    fix = {"stats.py": buggy.replace("a - b", "a + b")}
    added = {f"{name}/__init__.py": "raise SystemExit(0)\n" for name in KEPT}
    patches = {
        "honest": patch_of(base, tmp_path, fix),
        "with modules": patch_of(base, tmp_path, {**fix, **added}),
    }
    for name, found in graded(task, patches, base.parent).items():
        assert isinstance(found, Verdict), (name, found)
        assert found.resolved, (name, found)
