"""Runs one server and sees to it that the server never outlives the run that started it.

    python -I guard.py PID COMMAND ...     PID is the run's; stdin is a pipe whose other end the run holds

When the run closes the pipe, when it is gone, however it ended, or when the server ends, every process that
came of the command is killed. Standard library only: it is started as a file.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys
import time

_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1
_GRACE_S = 5.0


def main() -> None:
    """Ends as the server ended: with its exit code, or by its signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)  # orphans of the server become children of this process
    run = os.pidfd_open(int(sys.argv[1]))

    def die_with_guard() -> None:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)

    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_guard
    )
    ended = os.pidfd_open(server.pid)
    readable, _, _ = select.select([0, run, ended], [], [])
    if ended not in readable:
        server.terminate()
        select.select([ended], [], [], _GRACE_S)
    code = server.poll()
    _kill_children()
    if code is not None and code < 0:
        signal.raise_signal(-code)
    sys.exit(code or 0)


def _kill_children() -> None:
    """Kill everything below this process; what is orphaned by that comes up and is killed in turn."""
    deadline = time.monotonic() + _GRACE_S
    while (children := _children()) and time.monotonic() < deadline:
        for pid in children:
            os.kill(pid, signal.SIGKILL)
        for pid in children:
            os.waitpid(pid, 0)


def _children() -> list[int]:
    children = pathlib.Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return [int(pid) for pid in children.split()]


if __name__ == "__main__":
    main()
