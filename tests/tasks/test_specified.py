"""What a specification installs, resolved as of two days: the commit's and the harness's."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.errors import TaskError, Unresolvable
from hone.tasks.local import localise
from hone.tasks.python import Locked, lock_specified, specified
from hone.tasks.python import lock as lock_tree
from hone.tasks.python.interpreters import own_interpreter
from hone.tasks.specifications import ENVIRONMENT_FILE, Specification
from hone.types import Checks, Environment, Task
from tests.grading.calc import git
from tests.tasks.dated_index import DatedIndex, serve
from tests.tasks.index import BACKEND, BUILD_SYSTEM

PYTHON = own_interpreter().minor
COMMIT, LATER, TODAY = "2020-06-01", "2022-01-01", "2026-01-01"  # the harness was published in between


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[DatedIndex]:
    """Each package has a version of the commit's day, one of the harness's, and one of today."""
    index = DatedIndex(tmp_path / "index")
    for name in ("pytest", "jinja", "click", "six"):
        for day, version in (("2020-01-01", "1.0"), (LATER, "2.0"), (TODAY, "3.0")):
            index.add_on(day, name, version)
    index.add_on(LATER, "tox", "4.0", "pluggy")
    for day, version in (("2020-01-01", "1.0"), (LATER, "2.0"), (TODAY, "3.0")):
        index.add_on(day, "pluggy", version)
    monkeypatch.setenv("UV_CACHE_DIR", str(tmp_path / "uv"))
    with serve(index) as url:
        monkeypatch.setenv("UV_DEFAULT_INDEX", url)
        yield index


def tree(folder: Path, *requires: str) -> Path:
    """A project with a build backend of its own."""
    plan = {
        "name": "thing",
        "version": "1.5",
        "files": {"src/thing.py": "thing.py"},
        "written": {"thing_version.py": "version = {version!r}\n"},
        "metadata": [f"Requires-Dist: {line}" for line in requires],
    }
    project = f'[project]\nname = "thing"\nversion = "1.5"\ndependencies = {json.dumps(list(requires))}\n'
    files = {
        "pyproject.toml": BUILD_SYSTEM + project,
        "backend.py": BACKEND,
        "plan.json": json.dumps(plan),
        "src/thing.py": "",
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def specification(**fields: Any) -> Specification:
    made = Specification(
        source="swebench 4.1.0",
        data_set="swe-bench",
        repo="a/b",
        version="1.5",
        test_command="pytest",
        parser="parse_log_pytest",
        python=PYTHON,
    )
    return dataclasses.replace(made, **fields)


def lock(folder: Path, **fields: Any) -> Locked:
    return lock_specified(folder, specification(**fields), version="1.5", day=COMMIT)


def test_versions_are_of_two_days(index: DatedIndex, tmp_path: Path):
    made = lock(
        tree(tmp_path / "tree", "six"),
        packages="jinja",
        pip_packages=("tox==4.0",),
        install="python -m pip install -e .",
    )
    assert made.requirements == ("jinja==2.0", "pluggy==2.0", "pytest==2.0", "six==1.0", "tox==4.0")
    assert (made.python, made.distribution, made.paths) == (PYTHON, "thing==1.5", ("src", ""))
    assert dict(made.generated) == {"src/thing_version.py": "version = '1.5'\n"}
    assert Locked.from_json(json.loads(json.dumps(dataclasses.asdict(made)))) == made


def test_later_step_changes_the_choice_of_an_earlier_one(index: DatedIndex, tmp_path: Path):
    folder = tree(tmp_path / "tree", "click<2", "six")
    (folder / "pyproject.toml").write_text(BUILD_SYSTEM)
    (folder / "setup.cfg").write_text("[metadata]\nname = thing\n")  # alone, without a setup.py
    made = lock(folder, pip_packages=("click==2.0",), install="pip install .")
    assert "click==1.0" in made.requirements


def test_tree_that_is_no_project_requires_nothing(index: DatedIndex, tmp_path: Path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "pyproject.toml").write_text("[tool.ruff]\nline-length = 80\n")
    made = lock(tmp_path / "tree", pip_packages=("six",), install="pip install .")
    assert (made.requirements, made.distribution) == (("pytest==2.0", "six==2.0"), "")


def test_packages_of_conda_alone_are_left_out_and_named(index: DatedIndex, tmp_path: Path):
    folder = tree(tmp_path / "tree")
    (folder / "environment.yml").write_text("dependencies: [six, eccodes>=2, click=1.0]\n")
    made = lock(
        folder,
        packages=ENVIRONMENT_FILE,
        packages_files=("environment.yml",),
        pre_install=("apt-get install -y locales",),
    )
    assert made.left_out == ("apt-get install -y locales", "eccodes>=2")
    assert made.requirements == ("click==1.0", "pytest==2.0", "six==1.0")


def test_package_of_no_index_is_refused(index: DatedIndex, tmp_path: Path):
    with pytest.raises(TaskError, match=r"what its specification installs cannot be resolved.*nowhere"):
        lock(tree(tmp_path / "tree"), pip_packages=("nowhere==1",))
    with pytest.raises(TaskError, match="not a package of an index"):
        lock(tree(tmp_path / "tree"), pip_packages=("git+https://example.invalid/x",))


def test_package_is_not_left_out_while_the_index_fails(
    index: DatedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    folder = tree(tmp_path / "tree")
    (folder / "environment.yml").write_text("dependencies: [six, eccodes, click=1.0]\n")
    file = {"packages": ENVIRONMENT_FILE, "packages_files": ("environment.yml",)}
    index.outages["six"] = 1
    with pytest.raises(TaskError, match="The package index did not answer") as found:
        lock(folder, **file)
    assert not isinstance(found.value, Unresolvable)
    made = lock(folder, **file)
    assert (made.left_out, made.requirements) == (("eccodes",), ("click==1.0", "pytest==2.0", "six==1.0"))


def test_bounds_are_not_relaxed_while_the_index_fails(
    index: DatedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setenv("UV_HTTP_RETRIES", "0")
    folder = tree(tmp_path / "tree")
    (folder / "requirements-test.txt").write_text("six<2\n")
    index.outages["six"] = 1
    with pytest.raises(TaskError, match="The package index did not answer"):
        lock_tree(folder, version="1.5")
    assert lock_tree(folder, version="1.5").requirements == ("six==1.0",)


def test_rows_of_a_version_share_one_lock(index: DatedIndex, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    folder = tree(tmp_path / "root" / "a__b", "six")
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "First")
    git(folder, "tag", "v1.5")
    commits = [git(folder, "rev-parse", "HEAD")]
    (folder / "src" / "thing_version.py").write_text("version = 'its own'\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Second")
    commits.append(git(folder, "rev-parse", "HEAD"))
    config = {"python": PYTHON, "install": "pip install -e .", "test_cmd": "pytest", "log_parser": "x"}
    tasks = [
        Task(
            id=f"a__b-{commit}",
            problem="?",
            environment=Environment(image="docker://x", repo="a/b", commit=commit),
            checks=Checks(fail_to_pass=("t.py::t",), pass_to_pass=(), test_files={}, gold_patch=""),
            source="swe-rebench",
            metadata={
                "format": "swe-rebench",
                "row": {"repo": "a/b", "environment_setup_commit": commits[0], "install_config": config},
            },
        )
        for commit in commits
    ]
    made: list[str] = []
    original = specified.steps_of
    monkeypatch.setattr(specified, "steps_of", lambda *given: made.append("x") or original(*given))
    first, second = [
        localise(task, tmp_path / "root", locks=tmp_path / "locks").environment for task in tasks
    ]
    assert len(made) == 1
    assert first.requirements == second.requirements
    assert (first.python, first.distribution) == (PYTHON, "thing==1.5")
    assert [list(commit.files) for commit in first.history] == [["src/thing_version.py"]]
    assert second.history == ()  # the commit has that file
