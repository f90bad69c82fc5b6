"""Tasks that use a local repository instead of their image."""

from __future__ import annotations

import dataclasses
import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.python import Locked, lock, lock_specified
from hone.tasks.repository import Repository
from hone.tasks.specifications import Specification, find_specification
from hone.tasks.workspace import LOCAL, is_local
from hone.types import Commit, Environment, Task
from hone.utils.files import build_directory
from hone.utils.text import digest

_ENDINGS = ("", ".git", ".bundle")
_LOCK = "lock.json"
_RULES = 3  # version of how a specification is read; a new number resolves all of them again
_DESCRIBED = re.compile(r"\D*(?P<release>\d+(?:\.\d+)*)\S*-(?P<since>\d+)-g[0-9a-f]+$")
_GENERATED = "The files that the build writes"


def localise(task: Task, root: Path, *, locks: Path | None) -> Task:
    """Return the task with a repository below `root` instead of its image; a `repo:` task is unchanged.

    Args:
        root: directory of folders, bare repositories (`.git`) or bundles (`.bundle`) named `owner__name`.
        locks: cache of locked requirements; None when a virtual environment is given instead.

    A row whose harness has a specification gets the Python and the requirements of that specification, which
    rows of one version of a repository share; its script, which is written for an image, is left out.

    Raises:
        TaskError: the repository or the base commit does not exist, this machine does not have the Python, or
            the requirements cannot be resolved.
    """
    if is_local(task.environment):
        return task
    if not task.environment.repo:
        raise TaskError(f"task {task.id} names no repository to look for in {root}")
    repository = Repository.open(find_repository(root, task.environment.repo))
    try:
        commit = repository.commit(task.environment.commit or "HEAD")
        environment = Environment(
            image=f"{LOCAL}{repository.path.resolve()}",
            workdir=task.environment.workdir,
            repo=task.environment.repo,
            commit=commit,
            paths=("src", "lib", ""),
        )
        specification = specification_of(task)
        if locks is not None:
            locked = _read_lock(repository, commit, specification, _setup_commit(task) or commit, locks)
            environment = with_lock(environment, _without_existing(locked, repository, commit))
    except TaskError as error:
        raise TaskError(f"task {task.id}: {error}") from None
    return dataclasses.replace(task, environment=environment)


def specification_of(task: Task) -> Specification | None:
    """Return the specification of an imported row; None where its harness has none. Raises TaskError."""
    row, format = task.metadata.get("row"), task.metadata.get("format")
    return find_specification(row, format) if isinstance(row, dict) and isinstance(format, str) else None


def _setup_commit(task: Task) -> str:
    """Return the commit from which the harness makes the environment of the row's version; or ""."""
    return str(task.metadata["row"].get("environment_setup_commit") or "") if "row" in task.metadata else ""


def _without_existing(locked: Locked, repository: Repository, commit: str) -> Locked:
    """Return the lock without generated files that the commit itself has."""
    existing = repository.texts(commit, locked.generated)
    generated = {path: text for path, text in locked.generated.items() if path not in existing}
    return dataclasses.replace(locked, generated=generated)


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
        python=locked.python,
        build=locked.build,
    )


def _read_lock(
    repository: Repository, commit: str, specification: Specification | None, setup: str, locks: Path
) -> Locked:
    """Return the requirements of a commit as of its date; resolved once, then read from `locks`.

    With a specification they are those of the commit `setup`, which all rows of its version share.
    """
    key: list[Any] = [str(repository.path.resolve()), commit]
    if specification is not None:
        commit = repository.commit(setup)
        key = [str(repository.path.resolve()), commit, dataclasses.asdict(specification), _RULES]

    def write(partial: Path, _: int) -> None:
        day = repository.git("log", "-1", "--format=%cs", commit).decode().strip()
        if specification is None:
            locked = lock_commit(repository, commit, before=day)
        else:
            version = _version(repository, commit, specification.version)
            with _checked_out(repository, commit) as tree:
                locked = lock_specified(tree, specification, version=version, day=day)
        (partial / _LOCK).write_text(json.dumps(dataclasses.asdict(locked)), "utf-8")

    folder = build_directory(locks / digest(key), write)
    return Locked.from_json(json.loads((folder / _LOCK).read_text("utf-8")))


def _version(repository: Repository, commit: str, default: str) -> str:
    """Return the version that builds derive from the tags before a commit, by default the specification's."""
    try:
        described = repository.git("describe", "--tags", "--long", "--match", "*[0-9]*", commit).decode()
    except TaskError:
        return default
    match = _DESCRIBED.match(described)
    if match is None:
        return default
    *first, last = match["release"].split(".")
    if match["since"] == "0":
        return match["release"]
    return ".".join([*first, f"{int(last) + 1}.dev{match['since']}"])


def lock_commit(repository: Repository, commit: str, *, version: str = "", before: str = "") -> Locked:
    """Resolve the requirements of a commit, see `hone.tasks.python.lock`. Blocks. Raises TaskError."""
    with _checked_out(repository, commit) as tree:
        return lock(tree, version=version, before=before)


@contextmanager
def _checked_out(repository: Repository, commit: str) -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="hone-tree-") as folder:
        tree = Path(folder) / "tree"
        repository.checkout(commit, tree)
        yield tree
