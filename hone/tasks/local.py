"""Tasks that use a local repository instead of their image."""

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
_GENERATED = "The files that the build writes"


def localise(task: Task, root: Path, *, locks: Path | None) -> Task:
    """Return the task with a repository below `root` instead of its image; a `repo:` task is unchanged.

    Args:
        root: directory of folders, bare repositories (`.git`) or bundles (`.bundle`) named `owner__name`.
        locks: cache of locked requirements; None when a virtual environment is given instead.
    Raises:
        TaskError: the repository or the base commit does not exist, or its requirements cannot be resolved.
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
            environment = with_lock(environment, _read_lock(repository, commit, locks))
    except TaskError as error:
        raise TaskError(f"task {task.id}: {error}") from None
    return dataclasses.replace(task, environment=environment)


def find_repository(root: Path, name: str) -> Path:
    """Return the path of `owner/name` below `root`. Raises TaskError when there is none."""
    stem = name.replace("/", "__")
    for ending in _ENDINGS:
        path = root / (stem + ending)
        if path.exists():
            return path
    raise TaskError(f"{root} has no repository of {name}: expected {stem}")


def with_lock(environment: Environment, locked: Locked) -> Environment:
    """Return the environment with locked requirements and the files that the build writes."""
    generated = dict(locked.generated)
    return dataclasses.replace(
        environment,
        requirements=locked.requirements,
        distribution=locked.distribution,
        paths=locked.paths,
        history=(Commit(message=_GENERATED, files=generated),) if generated else (),
    )


def _read_lock(repository: Repository, commit: str, locks: Path) -> Locked:
    """Return the requirements of a commit as of its date; resolved once, then read from `locks`."""

    def write(partial: Path, _: int) -> None:
        day = repository.git("log", "-1", "--format=%cs", commit).decode().strip()
        locked = lock_commit(repository, commit, before=day)
        (partial / _LOCK).write_text(json.dumps(dataclasses.asdict(locked)), "utf-8")

    folder = build_directory(locks / digest([str(repository.path.resolve()), commit]), write)
    return Locked.from_json(json.loads((folder / _LOCK).read_text("utf-8")))


def lock_commit(repository: Repository, commit: str, *, version: str = "", before: str = "") -> Locked:
    """Resolve the requirements of a commit, see `hone.tasks.python.lock`. Blocks. Raises TaskError."""
    with tempfile.TemporaryDirectory(prefix="hone-tree-") as folder:
        tree = Path(folder) / "tree"
        repository.checkout(commit, tree)
        return lock(tree, version=version, before=before)
