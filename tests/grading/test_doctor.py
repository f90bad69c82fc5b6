"""What a machine lacks to grade a row, without starting anything."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from hone.grading.doctor import Diagnosis, Kind, Need, diagnose
from hone.tasks.files import import_rows
from hone.tasks.gradeability import Gradeability
from tests.grading.calc import GOLD, TEST_PATCH, git
from tests.tasks.test_interpreters import program

ROW: dict[str, Any] = {
    "instance_id": "pydicom__pydicom-1",
    "repo": "pydicom/pydicom",
    "version": "1.0",  # of which the specification names Python 3.6
    "problem_statement": "add subtracts",
    "patch": GOLD,
    "test_patch": TEST_PATCH,
    "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
    "PASS_TO_PASS": [],
}
IMAGE = "swebench/sweb.eval.x86_64.pydicom_1776_pydicom-1:latest"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with Python 3.6 and a folder with the repository; returns their parent."""
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("PYENV_ROOT", "UV_PYTHON_INSTALL_DIR", "XDG_DATA_HOME", "CONDA_PREFIX"):
        monkeypatch.delenv(name, raising=False)
    program(tmp_path / "home" / ".pyenv" / "versions" / "3.6.15" / "bin" / "python")
    repository = tmp_path / "repos" / "pydicom__pydicom"
    repository.mkdir(parents=True)
    git(repository, "init", "-q")
    (repository / "setup.py").write_text("from setuptools import setup\nsetup()\n")
    git(repository, "add", ".")
    git(repository, "commit", "-qm", "Base")
    return tmp_path


def diagnosis(machine: Path, images: tuple[str, ...] = (), **changes: Any) -> Diagnosis:
    commit = git(machine / "repos" / "pydicom__pydicom", "rev-parse", "HEAD")
    imported = import_rows([{**ROW, "base_commit": commit, **changes}])
    assert not imported.refused
    (found,) = diagnose(imported.tasks, imported.numbers, repositories=machine / "repos", images=images)
    return found


def test_row_with_repository_and_interpreter_is_gradeable(machine: Path):
    found = diagnosis(machine)
    assert (found.status, found.reason, found.natively.status) == ("gradeable", "", "gradeable")
    assert found.in_image.status is Gradeability.NEEDS_IMAGE
    assert found.needs == (Need(kind=Kind.IMAGE, name=IMAGE),)


def test_missing_interpreter_is_named(machine: Path):
    shutil.rmtree(machine / "home")
    found = diagnosis(machine)
    assert found.status is Gradeability.NEEDS_IMAGE
    assert Need(kind=Kind.INTERPRETER, name="3.6") in found.needs
    assert "needs Python 3.6, which this machine does not have" in found.reason


def test_missing_commit_and_repository_are_named(machine: Path):
    found = diagnosis(machine, base_commit="a" * 40)
    assert found.needs[0] == Need(kind=Kind.COMMIT, name=f"pydicom/pydicom@{'a' * 40}")
    (machine / "repos" / "pydicom__pydicom").rename(machine / "repos" / "other")
    imported = import_rows([{**ROW, "base_commit": "b" * 40}])
    (found,) = diagnose(imported.tasks, imported.numbers, repositories=machine / "repos")
    assert found.needs[0] == Need(kind=Kind.REPOSITORY, name="pydicom/pydicom")


def test_missing_compiler_is_named(machine: Path, monkeypatch: pytest.MonkeyPatch):
    repository = machine / "repos" / "pydicom__pydicom"
    (repository / "setup.py").write_text("setup(ext_modules=cythonize('*.pyx'))\n")
    git(repository, "commit", "-qam", "Extension")
    assert diagnosis(machine).status is Gradeability.GRADEABLE or shutil.which("cc") is None
    git_alone = machine / "bin"
    git_alone.mkdir()
    (git_alone / "git").symlink_to(shutil.which("git") or "git")
    monkeypatch.setenv("PATH", str(git_alone))
    assert Need(kind=Kind.COMPILER, name="gcc") in diagnosis(machine).needs


def test_stored_image_makes_a_row_gradeable(machine: Path):
    shutil.rmtree(machine / "home")
    assert diagnosis(machine, (IMAGE,)).status is Gradeability.GRADEABLE


def test_row_without_tests_is_refused_everywhere(machine: Path):
    found = diagnosis(machine, repo="someone/else", version="", eval_type="other")
    assert found.status is Gradeability.REFUSED
    assert "there is no rule 'other'" in found.reason


def test_command_prints_rows_counts_and_needs(
    machine: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    from hone.cli.doctor_tasks import doctor

    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    rows = machine / "rows.jsonl"
    commit = git(machine / "repos" / "pydicom__pydicom", "rev-parse", "HEAD")
    lines = [{**ROW, "base_commit": commit}, {**ROW, "instance_id": "x", "FAIL_TO_PASS": []}]
    rows.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert doctor(rows, machine / "repos", as_json=True) == 1
    printed = json.loads(capsys.readouterr().out)
    assert printed["counts"] == {
        "natively": 1, "in an image": 0, "needs_image": 0, "needs_extra": 0, "refused": 1
    }  # fmt: skip
    assert [row["place"] for row in printed["rows"]] == ["natively", None]
    assert printed["rows"][0]["needs"] == [{"kind": "image", "name": IMAGE}]
    assert doctor(rows, machine / "repos") == 1
    assert "1 of 2 rows can be graded here, 1 natively." in capsys.readouterr().out
