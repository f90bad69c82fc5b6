"""A task's repository on the host, made once and given to sandboxes as a read-only layer."""

from __future__ import annotations

import dataclasses
import fcntl
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath

from hone.tasks.errors import TaskError
from hone.tasks.formats import digest
from hone.types import Commit, Environment, Task

BRANCH = "main"
_WHO = "Hone <hone@localhost>"
_FIRST_DATE = 1_700_000_000  # seconds since 1970; commits are an hour apart, so that hashes never change
_ENV = {"PATH": "/usr/bin:/bin", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1", "LC_ALL": "C"}


def prepare(task: Task, cache: Path) -> Path:
    """The directory with the task's git repository, for `SandboxSpec.layer`; made on first use.

    It is complete or absent whatever kills the maker, and callers in other threads and processes get the same
    one. Every user can read it. Blocks; call it in a thread from async code.

    Raises TaskError when the history is empty or cannot be made into commits.
    """
    target = cache / environment_hash(task.environment)
    if target.is_dir():
        return target
    steps = _checked_steps(task)
    try:
        cache.mkdir(parents=True, exist_ok=True)
        with (cache / ".lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # released by the kernel when its holder dies
            if not target.is_dir():
                partial = cache / ".partial"  # whatever it holds now, its maker is dead
                shutil.rmtree(partial, ignore_errors=True)
                _make_repository(task, steps, partial)
                partial.rename(target)
    except OSError as error:
        raise TaskError(
            f"task {task.id}: cannot make its repository below {cache}: {error.strerror}"
        ) from error
    return target


def environment_hash(environment: Environment) -> str:
    """Names a task's directory in the cache: what is in the repository decides, 64 hexadecimal digits."""
    return digest([dataclasses.asdict(commit) for commit in environment.history])


def _checked_steps(task: Task) -> Sequence[Commit]:
    """The history, once it is sure that it can be replayed."""
    present: set[PurePosixPath] = set()
    for number, commit in enumerate(task.environment.history, start=1):
        for name, text in commit.files.items():
            path = PurePosixPath(name)
            odd = (
                path.is_absolute() or ".." in path.parts or str(path) != name or "\n" in name or "\0" in name
            )
            if odd or path.parts[0].lower() == ".git":
                raise TaskError(
                    f"task {task.id}: commit {number} writes to {name!r}, which is not a path in a repository"
                )
            if text is None and path not in present:
                raise TaskError(f"task {task.id}: commit {number} deletes {name!r}, which is not there")
            if text is None:
                present.discard(path)
            elif any(parent in present for parent in path.parents) or any(
                path in other.parents for other in present
            ):
                raise TaskError(f"task {task.id}: commit {number} makes {name!r} both a file and a folder")
            else:
                present.add(path)
    if not present:
        raise TaskError(f"task {task.id}: its repository is empty; give its environment a history of commits")
    return task.environment.history


def _make_repository(task: Task, steps: Sequence[Commit], target: Path) -> None:
    target.mkdir(mode=0o755)
    target.chmod(0o755)  # mkdir's mode is cut by the umask
    _git(task, target, ["init", "--quiet", "--template=", f"--initial-branch={BRANCH}"])
    stream = b"".join(_commit_stream(commit, i) for i, commit in enumerate(steps))
    _git(
        task,
        target,
        ["-c", "fastimport.unpackLimit=0", "fast-import", "--quiet", "--done"],
        stream + b"done\n",
    )
    _git(task, target, ["checkout", "--quiet", "--force", BRANCH])


def _commit_stream(commit: Commit, index: int) -> bytes:
    """One commit in git fast-import's format (git-fast-import(1))."""
    parts = [
        f"commit refs/heads/{BRANCH}\ncommitter {_WHO} {_FIRST_DATE + 3600 * index} +0000\n".encode(),
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


def _git(
    task: Task, folder: Path, arguments: Sequence[str], stdin: bytes = b"", env: Mapping[str, str] = _ENV
) -> None:
    command = [
        "/usr/bin/git",
        "-c",
        "core.hooksPath=/dev/null",
        "-c",
        "core.logAllRefUpdates=false",
        *arguments,
    ]
    try:
        done = subprocess.run(
            command, cwd=folder, env=env, input=stdin, capture_output=True, umask=0o022, check=False
        )
    except FileNotFoundError:
        raise TaskError("git is missing: install it as /usr/bin/git (apt-get install git)") from None
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        raise TaskError(f"task {task.id}: git {arguments[-1]} failed: {said[-1]}")
