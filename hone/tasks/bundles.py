"""Tasks that travel: the repository of a tasks file as a git bundle beside it.

    tasks.jsonl                        "image": "repo:owner__name-1a2b3c4d5e.bundle"
    owner__name-1a2b3c4d5e.bundle      the history up to the commit 1a2b3c4d5e...

Invariant: an image "repo:PATH" in a file is relative to the file's folder, so that the folder can be moved or
copied to another machine; in memory it is absolute.
"""

from __future__ import annotations

import dataclasses
import re
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from hone.tasks.errors import TaskError
from hone.tasks.repository import Repository, run_git
from hone.types import Task
from hone.utils.files import replace_file

SUFFIX = ".bundle"
OF_COMMIT = re.compile(r"-[0-9a-f]{10}\.bundle$")  # of a name that `write_bundle` gives: it names the content
LOCAL = "repo:"  # prefix of the image of a task whose repository is on this machine


def write_bundle(repository: Repository, commit: str, name: str, folder: Path) -> Path:
    """Return the bundle with the history up to a commit in `folder`; it is written on first use.

    Nothing else of the repository is in it: no other branch, tag, remote or stash. Blocks while git runs.

    Args:
        commit: full id.
        name: "owner/name" of the repository.
    Raises:
        TaskError: the repository is a shallow clone, or git fails.
    """
    path = folder / f"{name.replace('/', '__')}-{commit[:10]}{SUFFIX}"
    if path.is_file():
        return path
    if repository.git("rev-parse", "--is-shallow-repository").strip() == b"true":
        raise TaskError(
            f"{repository.path} is a shallow clone, whose history cannot be written to a bundle beside the "
            "tasks: complete it with `git fetch --unshallow`"
        )
    folder.mkdir(parents=True, exist_ok=True)
    place = repository.git("rev-parse", "--path-format=absolute", "--git-path", "objects")
    with tempfile.TemporaryDirectory(prefix="hone-bundle-") as scratch, replace_file(path) as partial:
        bare = Path(scratch) / "bare.git"  # borrows the objects, so that the original is only read
        run_git("init", "--quiet", "--bare", "--template=", "--initial-branch=main", str(bare))
        (bare / "objects" / "info").mkdir(exist_ok=True)
        (bare / "objects" / "info" / "alternates").write_bytes(place)
        run_git(f"--git-dir={bare}", "update-ref", "refs/heads/main", commit)
        run_git(
            f"--git-dir={bare}",
            "bundle",
            "create",
            "--quiet",
            str(partial.resolve()),
            "HEAD",
            "refs/heads/main",
        )
    return path


def on_bundle(tasks: Iterable[Task], bundle: Path) -> list[Task]:
    """Return the tasks with a bundle in place of the repository that they were made from."""
    image = f"{LOCAL}{bundle.resolve()}"
    return [
        dataclasses.replace(task, environment=dataclasses.replace(task.environment, image=image))
        for task in tasks
    ]


def with_bundles(tasks: Iterable[Task], folder: Path) -> Iterator[Task]:
    """Yield the tasks with the bundles of `write_bundle` in `folder`, copied there from elsewhere."""
    for task in tasks:
        path = Path(task.environment.image.removeprefix(LOCAL))
        if task.environment.image.startswith(LOCAL) and OF_COMMIT.search(path.name) and path.is_file():
            target = folder / path.name
            if not target.exists():
                folder.mkdir(parents=True, exist_ok=True)
                with replace_file(target) as partial:
                    shutil.copyfile(path, partial)
            yield from on_bundle([task], target)
        else:
            yield task


def to_relative(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a row of Hone's own format whose repository, if it is in `folder`, is named relative to it."""
    path = _repository_of(row)
    if path is None or not path.is_absolute() or not path.is_relative_to(folder.resolve()):
        return row
    return _with_repository(row, path.relative_to(folder.resolve()))


def to_absolute(row: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return a row of Hone's own format with the absolute path of its repository.

    Args:
        folder: of the file that holds the row.
    """
    path = _repository_of(row)
    if path is None or path.is_absolute() or str(path).startswith("~"):
        return row
    return _with_repository(row, folder.resolve() / path)


def _repository_of(row: dict[str, Any]) -> Path | None:
    environment = row.get("environment")
    image = environment.get("image") if isinstance(environment, dict) else None
    return Path(image.removeprefix(LOCAL)) if isinstance(image, str) and image.startswith(LOCAL) else None


def _with_repository(row: dict[str, Any], path: Path) -> dict[str, Any]:
    return {**row, "environment": {**row["environment"], "image": f"{LOCAL}{path}"}}
