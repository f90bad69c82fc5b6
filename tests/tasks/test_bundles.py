"""Tasks travel with a bundle of their repository: no file names a folder of one machine."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import pytest

from hone.curate.runner import repository_name
from hone.tasks.bundles import on_bundle, with_bundles, write_bundle
from hone.tasks.errors import TaskError
from hone.tasks.files import write_rows
from hone.tasks.formats import FORMATS, content_hash, save
from hone.tasks.repository import Repository, run_git
from hone.tasks.sources import load_all
from hone.tasks.workspace import prepare
from hone.types import Checks, Environment, Task
from tests.curate.mining.projects import FIXED, Project


def a_task(project: Project, commit: str = "HEAD") -> Task:
    checks = Checks(fail_to_pass=("t.py::t",), pass_to_pass=(), test_files={}, gold_patch="")
    environment = Environment(
        image=f"repo:{project.folder}", repo="me/shop", commit=project.git("rev-parse", commit)
    )
    return Task(id="a", problem="It is broken.", environment=environment, checks=checks, source="mined")


@pytest.fixture
def project(tmp_path: Path) -> Project:
    made = Project(tmp_path / "shop")
    made.commit("Fix the total", {"shop/prices.py": FIXED})
    return made


def bundled(project: Project, folder: Path, commit: str = "HEAD") -> tuple[Task, Path]:
    """A task of a commit on a bundle in `folder`, and the file that holds it."""
    bundle = write_bundle(
        Repository.open(project.folder), project.git("rev-parse", commit), "me/shop", folder
    )
    (task,) = on_bundle([a_task(project, commit)], bundle)
    save([task], folder / "tasks.jsonl")
    return task, folder / "tasks.jsonl"


def test_moved_folder_has_its_repository(project: Project, tmp_path: Path) -> None:
    task, _ = bundled(project, tmp_path / "made", "HEAD~1")
    shutil.move(tmp_path / "made", tmp_path / "moved")
    shutil.rmtree(project.folder)
    (found,) = load_all(tmp_path / "moved" / "tasks.jsonl")
    tree = prepare(found, tmp_path / "cache")
    assert "prices[1:]" in (tree / "shop/prices.py").read_text()
    assert content_hash(found) == content_hash(task)


def test_file_holds_no_absolute_path(project: Project, tmp_path: Path) -> None:
    _, file = bundled(project, tmp_path / "made")
    image = json.loads(file.read_text())["environment"]["image"]
    assert image == f"repo:me__shop-{project.git('rev-parse', 'HEAD')[:10]}.bundle"
    assert str(tmp_path) not in file.read_text()


def test_exported_rows_name_the_bundle_beside_them(project: Project, tmp_path: Path) -> None:
    _, file = bundled(project, tmp_path / "made")
    (task,) = load_all(file)
    write_rows([FORMATS["hone"].write(task)], tmp_path / "made" / "rows.jsonl")
    assert (tmp_path / "made" / "rows.jsonl").read_text() == file.read_text()


def test_repository_elsewhere_keeps_its_absolute_path(project: Project, tmp_path: Path) -> None:
    save([a_task(project)], tmp_path / "made" / "tasks.jsonl")
    (found,) = load_all(tmp_path / "made" / "tasks.jsonl")
    assert found.environment.image == f"repo:{project.folder}"


def test_bundle_is_copied_to_another_folder(project: Project, tmp_path: Path) -> None:
    task, _ = bundled(project, tmp_path / "made")
    (copied,) = with_bundles([task], tmp_path / "other")
    shutil.rmtree(tmp_path / "made")
    assert (prepare(copied, tmp_path / "cache") / "shop/prices.py").read_text() == FIXED


def test_bundle_has_the_name_of_its_repository(project: Project, tmp_path: Path) -> None:
    _, file = bundled(project, tmp_path / "made")
    (bundle,) = file.parent.glob("*.bundle")
    assert repository_name(Repository.open(bundle)) == "me/shop"


def test_bundle_holds_one_history_only(project: Project, tmp_path: Path) -> None:
    project.git("branch", "secret")
    project.git("checkout", "--quiet", "secret")
    secret = project.commit("Not for others", {"secret.txt": "1"})
    project.git("checkout", "--quiet", "main")
    _, file = bundled(project, tmp_path / "made")
    (bundle,) = file.parent.glob("*.bundle")
    with pytest.raises(TaskError, match="has no commit"):
        Repository.open(bundle).commit(secret)


def test_original_repository_is_only_read(project: Project, tmp_path: Path) -> None:
    def state() -> dict[str, bytes]:
        files = (path for path in (project.folder / ".git").rglob("*") if path.is_file())
        return {str(path): path.read_bytes() for path in files}

    before = state()
    bundled(project, tmp_path / "made")
    assert state() == before


def test_shallow_clone_is_refused(project: Project, tmp_path: Path) -> None:
    run_git("clone", "--quiet", "--depth=1", f"file://{project.folder}", str(tmp_path / "shallow"))
    repository = Repository.open(tmp_path / "shallow")
    with pytest.raises(TaskError, match=r"shallow clone.*git fetch --unshallow"):
        write_bundle(repository, repository.commit("HEAD"), "me/shop", tmp_path / "made")
    assert not (tmp_path / "made").exists()


def test_place_of_a_repository_is_no_content(project: Project) -> None:
    task = a_task(project)
    elsewhere = dataclasses.replace(task.environment, image="repo:/elsewhere")
    other = dataclasses.replace(task.environment, commit="0" * 40)
    assert content_hash(dataclasses.replace(task, environment=elsewhere)) == content_hash(task)
    assert content_hash(dataclasses.replace(task, environment=other)) != content_hash(task)
