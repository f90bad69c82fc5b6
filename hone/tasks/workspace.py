"""A task's repository on the host, made once and given to sandboxes as a read-only layer."""

from __future__ import annotations

import dataclasses
import errno
import os
import stat
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from hone.tasks.bundles import LOCAL
from hone.tasks.errors import TaskError
from hone.tasks.python import find_interpreter, install
from hone.tasks.python.compiled import build_in_place
from hone.tasks.repository import Repository, clone_commit, run_git, write_attributes
from hone.types import Commit, Environment, Task
from hone.utils.files import build_directory, default_cache_dir
from hone.utils.git import config, identity
from hone.utils.text import digest

BRANCH = "main"
_COMPILED = "The files that the build of the extensions writes"
_FIRST_DATE = 1_700_000_000  # Unix time; commits are an hour apart, so that hashes never change
_FULL = (errno.ENOSPC, errno.EDQUOT)
_SAID_FULL = ("No space left on device", "Out of diskspace", "Disk quota exceeded")  # by git
_IDENTITY = identity("Hone", "hone@localhost", date=f"{_FIRST_DATE} +0000")

# For commands in a sandbox, where another user may own the repository and the agent may commit.
GIT_ENV: Mapping[str, str] = config(
    {"safe.directory": "*", "user.name": "agent", "user.email": "agent@localhost"}
)


def prepare(task: Task, cache: Path) -> Path:
    """Return the directory with the task's git repository, for `SandboxSpec.layer`; built on first use.

    The repository of a `repo:` environment holds only the commit that the agent sees: no earlier or later
    commit, remote, reflog, stash or alternate. That commit keeps its id, unless the environment's history
    changes its files. Every user can read the directory. Blocks; in async code, call it in a thread.

    Raises TaskError when the history is empty or cannot be replayed, when a repository or a commit does not
    exist, and for an image, which holds its own repository. Raises OSError for a full disk, which is no fault
    of the task.
    """
    target = cache / environment_hash(task.environment)
    make = _clone_repository if is_local(task.environment) else _make_repository
    try:
        if not is_local(task.environment):
            _replay(task.environment.history)
        return build_directory(target, lambda partial, _: make(task.environment, partial))
    except TaskError as error:
        raise TaskError(f"task {task.id}: {error}") from None
    except OSError as error:
        if error.errno in _FULL:
            raise OSError(error.errno, error.strerror, str(cache)) from error
        raise TaskError(
            f"task {task.id}: cannot make its repository below {cache}: {error.strerror}"
        ) from error


def environment_hash(environment: Environment) -> str:
    """Return the name of a task's directory in the cache, 64 hex digits of the repository's content."""
    history = [dataclasses.asdict(commit) for commit in environment.history]
    if not is_local(environment):
        return digest(history)
    content: list[Any] = [environment.image, environment.commit, history]
    if environment.build:
        content += [environment.build, environment.python, environment.requirements, environment.paths]
    return digest(content)


def is_local(environment: Environment) -> bool:
    """Return whether the repository is one on this machine, `repo:PATH`."""
    return environment.image.startswith(LOCAL)


def tree(task: Task) -> dict[str, str]:
    """Return the files that the agent sees, path -> text.

    Raises TaskError when the history is empty, leaves the repository or deletes a file that does not exist.
    """
    try:
        return _replay(task.environment.history)
    except TaskError as error:
        raise TaskError(f"task {task.id}: {error}") from None


def _replay(history: Sequence[Commit]) -> dict[str, str]:
    files: dict[str, str] = {}
    for number, commit in enumerate(history, start=1):
        for name, text in commit.files.items():
            _check_path(name, f"commit {number}")
            if text is not None:
                files[name] = text
            elif files.pop(name, None) is None:
                raise TaskError(f"commit {number} deletes {name!r}, which does not exist")
    if not files:
        raise TaskError("its repository is empty; give its environment a history of commits")
    return files


def _check_path(name: str, where: str) -> None:
    """Raise TaskError unless `name` is a path inside a repository."""
    path = PurePosixPath(name)
    inside = path.parts and not path.is_absolute() and not {"..", ".git"} & set(map(str.lower, path.parts))
    if not inside or str(path) != name or set(name) & {"\n", "\0"}:
        raise TaskError(f"{where} writes to {name!r}, not a path in a repository")


def _make_repository(environment: Environment, target: Path) -> None:
    target.chmod(0o755)  # the umask may have removed bits
    try:
        stream = b"".join(_commit_stream(commit, i) for i, commit in enumerate(environment.history))
    except UnicodeEncodeError as error:
        raise TaskError("its history holds text that UTF-8 cannot encode") from error
    _git(target, "init", "--quiet", "--template=", f"--initial-branch={BRANCH}")
    load = ("-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--done")
    _git(target, *load, stdin=stream + b"done\n")
    _git(target, "checkout", "--quiet", "--force", BRANCH)


def _clone_repository(environment: Environment, target: Path) -> None:
    """Write the commit of a local repository, with the changes of the environment's history."""
    changes = {path: text for commit in environment.history for path, text in commit.files.items()}
    repository = Repository.open(Path(environment.image.removeprefix(LOCAL)).expanduser())
    if changes or environment.build:
        repository.checkout(environment.commit or "HEAD", target)
        _write_files(target, changes)
        if environment.build:
            _compile(environment, target)
        _commit_all(target, environment.history[0].message if changes else _COMPILED)
    else:
        clone_commit(repository, environment.commit or "HEAD", target)
    _git(target, "checkout", "--quiet", "--force", BRANCH)
    target.chmod(0o755)


def _compile(environment: Environment, target: Path) -> None:
    """Compile the extensions in the tree; everything that the build writes belongs to the commit."""
    command, *tools = environment.build
    needed = dataclasses.replace(environment, requirements=(*environment.requirements, *tools))
    site = install(needed, default_cache_dir() / "sites")
    paths = ":".join(str(target / path) for path in environment.paths)
    build_in_place(target, command, find_interpreter(environment.python), site, paths)


def _write_files(target: Path, changes: Mapping[str, str | None]) -> None:
    for name, text in changes.items():
        _check_path(name, "its history")
        path = target / name
        if text is None:
            try:
                path.unlink()
            except OSError:
                raise TaskError(f"its history deletes {name!r}, which does not exist") from None
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = stat.S_IMODE(path.stat().st_mode) if path.is_file() else 0o644
            path.unlink(missing_ok=True)
            path.write_bytes(text.encode("utf-8", "surrogateescape"))
            path.chmod(mode)


def _commit_all(target: Path, message: str) -> None:
    """Make the tree the only commit of a new repository; an unchanged tree is stored nowhere."""
    _git(target, "init", "--quiet", "--template=", f"--initial-branch={BRANCH}")
    write_attributes(target)
    _git(target, "add", "--all", "--force")
    _git(target, "commit", "--quiet", "--no-verify", "--allow-empty-message", f"--message={message}")


def _commit_stream(commit: Commit, index: int) -> bytes:
    """Return one commit in the format of git-fast-import(1)."""
    parts = [
        f"commit refs/heads/{BRANCH}\n".encode(),
        f"committer Hone <hone@localhost> {_FIRST_DATE + 3600 * index} +0000\n".encode(),
        _data(commit.message),
        *(_file_stream(path, text) for path, text in sorted(commit.files.items())),
        b"\n",
    ]
    return b"".join(parts)


def _file_stream(path: str, text: str | None) -> bytes:
    quoted = '"' + path.replace("\\", "\\\\").replace('"', '\\"') + '"'
    if text is None:
        return f"D {quoted}\n".encode()
    return f"M 100644 inline {quoted}\n".encode() + _data(text)


def _data(text: str) -> bytes:
    raw = text.encode()
    return b"data %d\n%s\n" % (len(raw), raw)


def _git(folder: Path, *arguments: str, stdin: bytes = b"") -> None:
    try:
        run_git(*arguments, stdin=stdin, cwd=folder, env=_IDENTITY)
    except TaskError as error:
        if any(words in str(error) for words in _SAID_FULL):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from None
        raise TaskError(f"git cannot make its repository: {error}") from None
