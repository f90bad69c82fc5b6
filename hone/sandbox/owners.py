"""Who owns what on this machine, and the removal of what dead owners left.

An owner is one open provider. Its name tells its process (pid namespace, pid, start time), so that anyone can
see whether it still lives; the name is on its directory, its cgroups and the command lines of its sandboxes.
The rule that must not break: nothing of an owner that lives, or that cannot be judged from here, is touched.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.namespaces import cgroups
from hone.utils.processes import kill_matching, send_signal, start_time

_NAME = re.compile(r"(\d+)-(\d+)-(\d+)-[0-9a-f]{8}")
_LABEL = re.compile(rb"hone-(?:sandbox|spawner):(\d+-\d+-\d+-[0-9a-f]{8})")
_SETTLE_S = 5.0  # the most that a kill is waited for
_TRIES, _PAUSE_S = 20, 0.05  # to remove a directory


def default_state_dir() -> Path:
    """$XDG_RUNTIME_DIR/hone, else /tmp/hone-<uid>."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    return Path(runtime) / "hone" if runtime else Path(f"/tmp/hone-{os.getuid()}")  # noqa: S108


def open_state_dir(path: Path) -> Path:
    """Make the state directory, or refuse one that another user could write to."""
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
def private_directory() -> Iterator[Path]:
    """Yield a new directory of this user alone; the next provider removes it if this process is killed."""
    directory = open_state_dir(default_state_dir()) / new_name()
    directory.mkdir(mode=0o700)
    try:
        yield directory
    finally:
        shutil.rmtree(directory)


def new_name() -> str:
    """Return a new owner name for the calling process."""
    pid = os.getpid()
    return f"{_pid_namespace()}-{pid}-{start_time(pid)}-{secrets.token_hex(4)}"


def _pid_namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino


def is_dead(name: str) -> bool:
    """True only when the owner's process is known to be gone."""
    match = _NAME.fullmatch(name)
    if match is None:
        return False
    namespace, pid, started = (int(group) for group in match.groups())
    return namespace == _pid_namespace() and start_time(pid) != started


def reconcile(state_dir: Path, roots: Sequence[Path]) -> int:
    """Kill and remove everything of dead owners; return how many things (processes, groups, directories)."""
    removed = kill_matching(_is_labelled, _SETTLE_S)
    for owner in {name for place in (*roots, state_dir) for name in _dead_names(place)}:
        removed += remove(owner, state_dir, roots)
    return removed


def remove(owner: str, state_dir: Path, roots: Sequence[Path]) -> int:
    """Remove the groups (killing what lives in them) and the directory of one owner; return their number."""
    removed = sum(_remove_groups(root / owner) for root in roots if (root / owner).is_dir())
    if (state_dir / owner).exists():
        _remove_tree(state_dir / owner)
        removed += 1
    return removed


def _remove_tree(directory: Path) -> None:
    """Another process may be removing it too; and what is just ending may still write there, for a moment."""
    for _ in range(_TRIES):
        shutil.rmtree(directory, ignore_errors=True)
        if not directory.exists():
            return
        time.sleep(_PAUSE_S)


def _dead_names(directory: Path) -> list[str]:
    """Names of dead owners that have an entry in `directory`."""
    try:
        return [entry.name for entry in directory.iterdir() if is_dead(entry.name)]
    except FileNotFoundError:
        return []


def _is_labelled(pid: int) -> bool:
    """Return whether a process carries a dead owner's name, and this user may kill it."""
    process = Path(f"/proc/{pid}")
    try:
        match = _LABEL.search((process / "cmdline").read_bytes())
        uid = process.stat().st_uid
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    return match is not None and is_dead(match[1].decode()) and (os.geteuid() in (0, uid))


def _remove_groups(owner: Path) -> int:
    """Kill what lives in an owner's cgroups and remove them."""
    removed = 0
    try:
        inner = [entry for entry in owner.iterdir() if entry.is_dir()]
    except FileNotFoundError:  # another provider, which opened at the same time, was quicker
        return 0
    for directory in [*inner, owner]:
        deadline = time.monotonic() + _SETTLE_S
        while not cgroups.remove(str(directory)) and time.monotonic() < deadline:
            send_signal(set(cgroups.members(str(directory))), signal.SIGKILL)
            time.sleep(0.005)
        removed += 1
    return removed
