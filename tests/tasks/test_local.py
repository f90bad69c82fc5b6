"""Repositories on this machine in place of images."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
from pathlib import Path

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.local import localise, with_lock
from hone.tasks.python import Locked
from hone.tasks.repository import Repository
from hone.tasks.workspace import prepare
from hone.types import Checks, Commit, Environment, Task


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A folder of repositories; `a/b` has three commits, a branch, a tag, a remote, a stash and a hook."""
    folder = tmp_path / "root" / "a__b"
    folder.mkdir(parents=True)
    git(folder, "init", "-q", "--initial-branch=main")
    for number in range(3):
        (folder / "code.py").write_text(f"value = {number}\n")
        git(folder, "add", ".")
        git(folder, "commit", "-qm", f"Commit {number}")
    git(folder, "tag", "v1")
    git(folder, "branch", "later")
    git(folder, "remote", "add", "origin", "https://example.invalid/a/b")
    (folder / "code.py").write_text("value = 'stashed'\n")
    git(folder, "stash", "-q")
    hook = folder / ".git" / "hooks" / "post-checkout"
    hook.parent.mkdir(exist_ok=True)
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hook-ran\n")
    hook.chmod(0o755)
    return tmp_path / "root"


def task_at(root: Path, revision: str, **environment: object) -> Task:
    commit = git(root / "a__b", "rev-parse", revision) if (root / "a__b").is_dir() else revision
    return Task(
        id="a__b-1",
        problem="?",
        environment=Environment(image="docker://x", repo="a/b", commit=commit, **environment),  # type: ignore[arg-type]
        checks=Checks(fail_to_pass=("test.py::test",), pass_to_pass=(), test_files={}, gold_patch=""),
        source="swe-bench",
    )


def seen(workspace: Path) -> list[str]:
    """Everything that git knows there: commits by name, refs, remotes, and how many objects."""
    commits = git(workspace, "log", "--all", "--format=%s")
    refs = git(workspace, "for-each-ref", "--format=%(refname)")
    lost = git(workspace, "fsck", "--unreachable", "--no-reflogs", "--no-progress")
    objects = git(workspace, "cat-file", "--batch-all-objects", "--batch-check=%(objecttype)").split()
    return [commits, refs, git(workspace, "remote"), lost, " ".join(sorted(objects))]


def test_repository_has_only_the_base_commit(root: Path, tmp_path: Path) -> None:
    task = localise(task_at(root, "HEAD~1"), root, locks=tmp_path / "locks")
    workspace = prepare(task, tmp_path / "cache")
    assert seen(workspace) == ["Commit 1", "refs/heads/main", "", "", "blob commit tree"]
    assert git(workspace, "rev-parse", "HEAD") == task.environment.commit
    assert git(workspace, "status", "--porcelain") == ""
    assert not list(workspace.glob(".git/logs/**/*"))
    assert not (tmp_path / "hook-ran").exists()
    assert git(root / "a__b", "stash", "list") != ""  # the repository itself is as it was


def test_seeded_bug_is_not_in_the_history(root: Path, tmp_path: Path) -> None:
    task = localise(task_at(root, "HEAD"), root, locks=None)
    bug = Commit(message="Start", files={"code.py": "value = 7\n"})
    seeded = dataclasses.replace(task, environment=dataclasses.replace(task.environment, history=(bug,)))
    assert task.environment.paths == ("src", "lib", "")  # assumed without a build
    workspace = prepare(seeded, tmp_path / "cache")
    assert (workspace / "code.py").read_text() == "value = 7\n"
    assert seen(workspace) == ["Start", "refs/heads/main", "", "", "blob commit tree"]


def test_environment_has_all_that_was_locked() -> None:
    made = {"thing/_version.py": "version = '1.5'\n"}
    locked = Locked(requirements=("six==2.0",), distribution="thing==1.5", paths=("src", ""), generated=made)
    found = with_lock(Environment(image="repo:/x", repo="a/b"), locked)
    assert (found.image, found.repo) == ("repo:/x", "a/b")
    assert (found.requirements, found.distribution) == (("six==2.0",), "thing==1.5")
    assert (found.paths, [commit.files for commit in found.history]) == (("src", ""), [made])


@pytest.mark.parametrize("form", ["bare", "bundle"])
def test_bare_repository_and_bundle_work(root: Path, tmp_path: Path, form: str) -> None:
    task = task_at(root, "HEAD~2")
    if form == "bare":
        git(root, "clone", "-q", "--bare", "a__b", "a__b.git")
    else:
        git(root / "a__b", "bundle", "create", "-q", str(root / "a__b.bundle"), "--all")
    shutil.rmtree(root / "a__b")
    workspace = prepare(localise(task, root, locks=None), tmp_path / "cache")
    assert seen(workspace)[0] == "Commit 0"


def test_missing_repository_is_an_error(root: Path, tmp_path: Path) -> None:
    task = task_at(root, "HEAD")
    nowhere = dataclasses.replace(task, environment=dataclasses.replace(task.environment, repo="c/d"))
    with pytest.raises(TaskError, match="has no repository of c/d: expected c__d"):
        localise(nowhere, root, locks=None)
    lost = dataclasses.replace(task, environment=dataclasses.replace(task.environment, commit="1" * 40))
    with pytest.raises(TaskError, match=f"task a__b-1: .* has no commit {'1' * 40}"):
        localise(lost, root, locks=None)
    (root / "e__f").mkdir()
    empty = dataclasses.replace(task, environment=dataclasses.replace(task.environment, repo="e/f"))
    with pytest.raises(TaskError, match="is not a git repository"):
        localise(empty, root, locks=None)
    (root / "g__h.bundle").write_text("no bundle")
    broken = dataclasses.replace(task, environment=dataclasses.replace(task.environment, repo="g/h"))
    with pytest.raises(TaskError, match="is not a readable git bundle"):
        localise(broken, root, locks=None)


def test_repository_is_read_at_any_commit(root: Path, tmp_path: Path) -> None:
    repository = Repository.open(root / "a__b")
    assert repository.files("HEAD") == ["code.py"]
    assert repository.texts("v1~1", ["code.py"]) == {"code.py": "value = 1\n"}
    repository.checkout("HEAD~2", tmp_path / "tree")
    assert sorted(path.name for path in (tmp_path / "tree").iterdir()) == ["code.py"]
    with pytest.raises(TaskError, match="has no commit nothing"):
        repository.commit("nothing")
    with pytest.raises(TaskError):
        repository.commit("--all")


def test_file_name_that_is_not_utf8_is_read(root: Path) -> None:
    (root / "a__b" / "caf\udce9.py").write_text("1\n")
    git(root / "a__b", "add", ".")
    git(root / "a__b", "commit", "-qm", "Latin-1")
    repository = Repository.open(root / "a__b")
    assert repository.files("HEAD") == ["caf\udce9.py", "code.py"]
    assert repository.texts("HEAD", ["caf\udce9.py"]) == {"caf\udce9.py": "1\n"}


def test_line_ends_that_attributes_ask_for_are_no_changes(root: Path, tmp_path: Path) -> None:
    folder = root / "a__b"
    (folder / ".gitattributes").write_text("*.bat text eol=crlf\n")
    (folder / "run.bat").write_bytes(b"one\ntwo\n")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Script")
    for history in ((), (Commit(message="More", files={"more.py": ""}),)):
        task = localise(task_at(root, "HEAD"), root, locks=None)
        environment = dataclasses.replace(task.environment, history=history)
        workspace = prepare(dataclasses.replace(task, environment=environment), tmp_path / "cache")
        assert (workspace / "run.bat").read_bytes() == b"one\ntwo\n"
        (workspace / ".git" / "info" / "attributes").unlink()
        (workspace / "run.bat").touch()
        assert git(workspace, "status", "--porcelain") == ""
