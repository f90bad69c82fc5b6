"""Whether a process works on a run, without touching the lock that it holds."""

from __future__ import annotations

import os
from pathlib import Path

_LOCKS = Path("/proc/locks")


def is_locked(run: Path) -> bool:
    """Return whether a process of this machine holds the lock of a run.

    Taking the lock to find out could make a run that starts at that moment fail, so the kernel's list of
    locks is read; where there is none, the process that the file names must be alive.
    """
    try:
        with (run / "lock").open() as file:
            pid, inode = file.read().strip(), os.fstat(file.fileno()).st_ino
    except OSError:
        return False
    if not pid.isdigit():
        return False
    try:
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return _is_alive(int(pid))
    return any(_holds(line.split(), pid, inode) for line in lines)


def _holds(fields: list[str], pid: str, inode: int) -> bool:
    """Return whether a line such as "3: FLOCK  ADVISORY  WRITE 258 fe:00:128 0 EOF" is the run's lock."""
    if len(fields) < 6 or fields[1] != "FLOCK" or fields[3] != "WRITE":
        return False
    return fields[4] == pid and fields[5].rpartition(":")[2] == str(inode)


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
