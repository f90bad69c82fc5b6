"""Tasks whose image is left aside for a repository on this machine, in a folder of `owner__name` ones."""

from __future__ import annotations

import dataclasses
import json
import tempfile
from pathlib import Path

from hone.tasks.errors import TaskError
from hone.tasks.formats import digest
from hone.tasks.python import Locked, lock
from hone.tasks.repository import Repository
from hone.tasks.workspace import LOCAL, is_local
from hone.types import Commit, Environment, Task
from hone.utils.files import build_directory

_ENDINGS = ("", ".git", ".bundle")
_LOCK = "lock.json"


def localise(task: Task, root: Path, *, locks: Path | None) -> Task:
    """The task with its repository below `root` in place of its image; a `repo:` task stays as it is.

    Args:
        root: of folders, bare repositories (`.git`) or bundles (`.bundle`) named `owner__name`.
        locks: cache of what repositories require; None: nothing is asked for, since a virtual environment
            is given.
    Raises:
        TaskError: the repository or the base commit is not there, or what it requires cannot be found.
    """
    if is_local(task.environment):
        return task
    if not task.environment.repo:
        raise TaskError(f"task {task.id} names no repository to look for in {root}")
    path = find_repository(root, task.environment.repo)
    repository = Repository.open(path)
    try:
        commit = repository.commit(task.environment.commit or "HEAD")
        environment = Environment(
            image=f"{LOCAL}{path.resolve()}",
            workdir=task.environment.workdir,
            repo=task.environment.repo,
            commit=commit,
            paths=("src", "lib", ""),
        )
        if locks is not None:
            environment = with_lock(environment, lock_commit(repository, commit, locks))
    except TaskError as error:
        raise TaskError(f"task {task.id}: {error}") from None
    return dataclasses.replace(task, environment=environment)


def find_repository(root: Path, name: str) -> Path:
    """Raises TaskError when there is none for `owner/name` below `root`."""
    stem = name.replace("/", "__")
    for ending in _ENDINGS:
        path = root / (stem + ending)
        if path.exists():
            return path
    raise TaskError(f"{root} holds no repository of {name}: it would be called {stem}")


def with_lock(environment: Environment, locked: Locked) -> Environment:
    """The environment with what the repository requires, and the files that its build would write."""
    generated = dict(locked.generated)
    return dataclasses.replace(
        environment,
        requirements=locked.requirements,
        distribution=locked.distribution,
        paths=locked.paths,
        history=(Commit(message="The base commit.", files=generated),) if generated else (),
    )


def lock_commit(repository: Repository, commit: str, locks: Path) -> Locked:
    """What the tests at a commit require, as of its day; found once, then read from `locks`.

    Raises TaskError.
    """
    full = repository.commit(commit)
    day = repository.git("log", "-1", "--format=%cs", full).decode().strip()
    folder = build_directory(
        locks / digest([str(repository.path.resolve()), full]),
        lambda partial, _: _write_lock(repository, full, day, partial / _LOCK),
    )
    return Locked.from_json(json.loads((folder / _LOCK).read_text("utf-8")))


def _write_lock(repository: Repository, commit: str, day: str, path: Path) -> None:
    with tempfile.TemporaryDirectory(prefix="hone-tree-") as folder:
        repository.checkout(commit, Path(folder) / "tree")
        locked = lock(Path(folder) / "tree", before=day)
    path.write_text(json.dumps(dataclasses.asdict(locked)), "utf-8")
