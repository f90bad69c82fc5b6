"""Track which process owns which resources on this machine, and remove those of dead owners.

An owner is one open provider. Its name contains its process (PID namespace, PID, start time), so that every
process can tell whether it is alive; directories, cgroups and command lines of sandboxes carry the name.
Invariant: resources of a live owner, or of one in another PID namespace, are never touched.
"""

from __future__ import annotations

import os
import re
import secrets
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from hone.sandbox import trees
from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.namespaces import cgroups
from hone.utils.processes import kill_matching, send_signal, start_time

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-[0-9a-f]{8}")
_LABEL = re.compile(rb"hone-(?:sandbox|spawner):(\d+-\d+-\d+-[0-9a-f]{8})")
_KILL_TIMEOUT_S = 5.0
_TRIES, _PAUSE_S = 20, 0.05  # of removing a directory


def default_state_dir() -> Path:
    """Return $XDG_RUNTIME_DIR/hone, else /tmp/hone-<uid>."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "hone" if runtime else Path(f"/tmp/hone-{os.getuid()}")  # noqa: S108


def open_state_dir(path: Path) -> Path:
    """Return the state directory, made if missing; refuse one that another user could write to."""
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    info = path.lstat()
    if not path.is_dir() or path.is_symlink() or info.st_uid != os.geteuid() or info.st_mode & 0o022:
        raise ProviderUnavailable(
            f"the state directory {path} must be a directory that only this user can write to; "
            "remove it or set sandbox.state_dir",
            retryable=False,
        )
    return path


@contextmanager
def private_directory(state_dir: Path | None = None) -> Iterator[Path]:
    """Yield a new directory of this user alone; the next provider removes it if this process is killed.

    `state_dir`: default `default_state_dir()`.
    """
    directory = open_state_dir(state_dir or default_state_dir()) / new_name()
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        trees.remove(directory)


def new_name() -> str:
    """Return a new owner name for the calling process."""
    pid = os.getpid()
    return f"{_pid_namespace()}-{pid}-{start_time(pid)}-{secrets.token_hex(4)}"


def boot_id() -> str:
    """Return an id of this machine since its last boot. Owner names mean nothing on another machine."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def is_dead(name: str) -> bool:
    """Return True only when the owner's process is known to be gone."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, started = (int(group) for group in match.groups())
    return namespace == _pid_namespace() and start_time(pid) != started


def reconcile(state_dir: Path, roots: Sequence[Path]) -> int:
    """Remove everything of dead owners; return the number of processes, cgroups and directories removed."""
    removed = kill_matching(_is_labelled, _KILL_TIMEOUT_S)
    for owner in {name for place in (*roots, state_dir) for name in _dead_names(place)}:
        removed += remove(owner, state_dir, roots)
    return removed


def remove(owner: str, state_dir: Path, roots: Sequence[Path]) -> int:
    """Remove the cgroups (killing their processes) and the directory of one owner; return their number."""
    removed = sum(_remove_groups(root / owner) for root in roots if (root / owner).is_dir())
    if (state_dir / owner).exists():
        _remove_tree(state_dir / owner)
        removed += 1
    return removed


def _remove_tree(directory: Path) -> None:
    """Remove a directory in which an ending process, or another clean-up, may still change entries."""
    for _ in range(_TRIES):
        with suppress(OSError):
            trees.remove(directory)
        if not directory.exists():
            return
        time.sleep(_PAUSE_S)


def _dead_names(directory: Path) -> list[str]:
    """Return the dead owners that have an entry in `directory`."""
    try:
        return [entry.name for entry in directory.iterdir() if is_dead(entry.name)]
    except FileNotFoundError:
        return []


def _is_labelled(pid: int) -> bool:
    """Return whether a process carries a dead owner's name and this user may kill it."""
    process = Path(f"/proc/{pid}")
    try:
        match = _LABEL.search((process / "cmdline").read_bytes())
        uid = process.stat().st_uid
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return match is not None and is_dead(match[1].decode()) and (os.geteuid() in (0, uid))


def _remove_groups(owner: Path) -> int:
    """Remove an owner's cgroups, killing the processes in them; return their number."""
    removed = 0
    try:
        inner = [entry for entry in owner.iterdir() if entry.is_dir()]
    except FileNotFoundError:  # another provider that opened at the same time removed it
        return 0
    for directory in [*inner, owner]:
        deadline = time.monotonic() + _KILL_TIMEOUT_S
        while not cgroups.remove(str(directory)) and time.monotonic() < deadline:
            send_signal(set(cgroups.members(str(directory))), signal.SIGKILL)
            time.sleep(0.005)
        removed += 1
    return removed
