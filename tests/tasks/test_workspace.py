import multiprocessing
import os
import signal
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from hone.tasks import workspace
from hone.tasks.curriculum import generate
from hone.tasks.errors import TaskError
from hone.tasks.settings import TasksSettings
from hone.tasks.workspace import GIT_ENV, prepare, tree
from hone.types import Commit, Environment, Task

TASK = generate(TasksSettings(train=1, test=0, unseen=0)).train[0]


def with_history(*commits: dict[str, str | None]) -> Task:
    history = tuple(Commit(message=f"Step {i}\n\nMore.", files=files) for i, files in enumerate(commits))
    return replace(TASK, environment=Environment(image="host", history=history))


def git(folder: Path, *arguments: str) -> str:
    env = {"PATH": "/usr/bin:/bin", **GIT_ENV}
    run = subprocess.run(["git", *arguments], cwd=folder, env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def content(folder: Path) -> dict[str, bytes]:
    """Every file's bytes but the index's, which holds inode numbers and times."""
    files = [path for path in folder.rglob("*") if path.is_file() and path.name != "index"]
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def test_history_becomes_commits_and_a_clean_tree(tmp_path):
    task = with_history(
        {"a.py": "x = 1\n", "old name.txt": "ä \r\n no end", 'odd"\\é.py': ""},
        {"a.py": "x = 2\n", "old name.txt": None, "deep/er/b.py": "\0"},
    )
    folder = prepare(task, tmp_path)
    log = git(folder, "log", "--format=%s|%b|%an|%cn", "--reverse").splitlines()
    assert log == ["Step 0|More.|Hone|Hone", "Step 1|More.|Hone|Hone"]
    assert git(folder, "rev-parse", "HEAD") == "f78eca03e2b81e653d936326f895b5fbc2082318"
    assert git(folder, "status", "--porcelain", "--ignored") == ""
    assert git(folder, "remote") == ""
    assert git(folder, "branch", "--all", "--format=%(refname)") == "refs/heads/main"
    assert git(folder, "fsck", "--unreachable", "--no-progress") == ""
    assert not (folder / ".git/hooks").exists()
    assert not (folder / ".git/logs").exists()
    on_disk = {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
    assert {k: v.decode() for k, v in on_disk.items() if not k.startswith(".git/")} == tree(task)
    assert git(folder, "show", "HEAD~1:a.py") == "x = 1"


def test_equal_histories_give_equal_bytes(tmp_path, monkeypatch):
    first = prepare(TASK, tmp_path / "one")
    monkeypatch.setenv("GIT_AUTHOR_NAME", "someone else")
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    (tmp_path / ".gitconfig").write_text("[commit]\n\tgpgsign = true\n[core]\n\tautocrlf = true\n")
    second = prepare(TASK, tmp_path / "two")
    assert first.name == second.name
    assert content(first) == content(second)


def test_tasks_with_one_history_share_a_directory(tmp_path):
    assert prepare(TASK, tmp_path) == prepare(replace(TASK, id="other", problem="?"), tmp_path)
    assert prepare(with_history({"a": "1"}), tmp_path) != prepare(with_history({"a": "2"}), tmp_path)


def test_every_user_can_read_the_repository(tmp_path):
    before = os.umask(0o077)
    try:
        folder = prepare(TASK, tmp_path / "cache")
    finally:
        os.umask(before)
    for path in [folder, *folder.rglob("*")]:
        needed = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & needed == needed, path


def test_concurrent_callers_share_one_build(tmp_path, monkeypatch):
    made = []
    run = workspace.run_git

    def counted(*arguments, **keywords):
        made.extend(word for word in arguments if word == "init")
        return run(*arguments, **keywords)

    monkeypatch.setattr(workspace, "run_git", counted)
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: prepare(TASK, tmp_path), range(8)))
    assert len(folders) == len(made) == 1
    assert git(folders.pop(), "status", "--porcelain") == ""


def _prepare_until_told(cache: Path, pipe) -> None:
    run = workspace.run_git

    def halting(*arguments, **keywords):
        output = run(*arguments, **keywords)
        pipe.send(arguments[0])
        pipe.recv()
        return output

    workspace.run_git = halting
    prepare(TASK, cache)


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_killed_build_leaves_nothing_and_blocks_no_one(tmp_path, steps):
    here, there = multiprocessing.Pipe()
    maker = multiprocessing.get_context("fork").Process(target=_prepare_until_told, args=(tmp_path, there))
    maker.start()
    for step in range(steps):
        assert here.poll(60)
        here.recv()
        if step < steps - 1:
            here.send("go on")
    os.kill(maker.pid, signal.SIGKILL)
    maker.join()
    target = tmp_path / workspace.environment_hash(TASK.environment)
    assert not target.exists()
    assert prepare(TASK, tmp_path) == target
    assert git(target, "status", "--porcelain") == ""
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([f".{target.name}.lock", target.name])


@pytest.mark.parametrize(
    ("history", "said"),
    [
        ([], "its repository is empty"),
        ([{"a": "1"}, {"a": None}], "its repository is empty"),
        ([{"a": "1"}, {"b": None}], "commit 2 deletes 'b'"),
        ([{"../a": "1"}], "not a path in a repository"),
        ([{"/etc/a": "1"}], "not a path in a repository"),
        ([{".git/config": "1"}], "not a path in a repository"),
        ([{"sub/.GIT/hooks/x": "1"}], "not a path in a repository"),
        ([{"a//b": "1"}], "not a path in a repository"),
        ([{"": "1"}], "not a path in a repository"),
        ([{".": "1"}], "not a path in a repository"),
        ([{"a\nb": "1"}], "not a path in a repository"),
        ([{"a": "\ud800"}], "UTF-8"),
    ],
)
def test_invalid_history_is_an_error(tmp_path, history, said):
    with pytest.raises(TaskError, match=TASK.id) as caught:
        prepare(with_history(*history), tmp_path)
    assert said in str(caught.value)
    assert "\n" not in str(caught.value)


def test_unwritable_cache_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(TaskError, match="cannot make its repository"):
        prepare(TASK, tmp_path / "file" / "cache")
