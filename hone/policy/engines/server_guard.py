"""Runs one server process and guarantees that it never outlives the run that started it.

    python -I server_guard.py PID COMMAND ...    PID is the run's; stdin is a pipe that the run holds

When the run closes the pipe, when the run exits, however it does, or when the server exits, every process
that the command started is killed. Started as a file, without Hone on the path.
"""

# pyright: reportUnknownMemberType=false
from __future__ import annotations

import ctypes
import os
import pathlib
import select
import signal
import subprocess
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "utils"))
import processes  # pyright: ignore[reportMissingImports]  # the file in hone/utils

_SET_CHILD_SUBREAPER = 36
_SET_PDEATHSIG = 1
_GRACE_S = 5.0


def main() -> None:
    """Exit as the server did: with its exit code, or by its signal."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.prctl(_SET_CHILD_SUBREAPER, 1)  # orphans of the server become children of this process
    run = os.pidfd_open(int(sys.argv[1]))

    def die_with_guard() -> None:
        libc.prctl(_SET_PDEATHSIG, signal.SIGKILL)

    server = subprocess.Popen(
        sys.argv[2:], stdin=subprocess.DEVNULL, start_new_session=True, preexec_fn=die_with_guard
    )
    exited = os.pidfd_open(server.pid)
    readable, _, _ = select.select([0, run, exited], [], [])
    if exited not in readable:
        server.terminate()
        select.select([exited], [], [], _GRACE_S)
    code = server.poll()
    processes.kill_descendants()
    processes.reap_children(_GRACE_S)
    if code is not None and code < 0:
        signal.raise_signal(-code)
    sys.exit(code or 0)


if __name__ == "__main__":
    main()
