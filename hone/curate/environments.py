"""The environment of a commit in a local repository."""

from __future__ import annotations

from hone.tasks.errors import TaskError
from hone.tasks.local import with_lock
from hone.tasks.python import Locked
from hone.tasks.repository import Repository
from hone.types import Environment

_NO_OWNER = "local"  # of a repository without a remote


def repository_name(repository: Repository) -> str:
    """Return "owner/name" of the remote or of a folder `owner__name`, otherwise "local/folder"."""
    try:
        url = repository.git("config", "--get", "remote.origin.url").decode("utf-8", "replace").strip()
    except TaskError:
        url = ""  # git fails so when there is no remote
    parts = [part for part in url.removesuffix("/").removesuffix(".git").replace(":", "/").split("/") if part]
    if len(parts) >= 2:
        return f"{parts[-2]}/{parts[-1]}"
    path = repository.path.resolve()
    stem = path.name.removesuffix(".git").removesuffix(".bundle") or path.parent.name
    owner, separator, name = stem.partition("__")
    return f"{owner}/{name}" if separator and owner and name else f"{_NO_OWNER}/{stem}"


def commit_environment(repository: Repository, commit: str, locked: Locked) -> Environment:
    """Return the environment of a commit with its locked requirements and the files that its build writes."""
    environment = Environment(
        image=f"repo:{repository.path.resolve()}", repo=repository_name(repository), commit=commit
    )
    return with_lock(environment, locked)
