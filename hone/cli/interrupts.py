"""Ctrl-C stops a command cleanly, and within ten seconds even if something hangs.

The first Ctrl-C (or SIGTERM) raises KeyboardInterrupt, on which asyncio cancels its tasks. A separate thread
sees the signal too, even while the main thread is inside a tensor operation, and exits the process after
GRACE_S, or at the second Ctrl-C; a run can be killed at any moment without loss.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from hone.cli.errors import STOPPED, Interrupted

GRACE_S = 8.0


@contextmanager
def stoppable(hint: str) -> Generator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted; `hint` tells the user how to continue."""
    ours, signals = socket.socketpair()
    signals.setblocking(False)
    watcher = threading.Thread(target=_watch, args=(ours, hint), daemon=True, name="interrupts")
    watcher.start()
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    # A background job of a shell script inherits SIGINT as ignored; asyncio would then not cancel on it.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, _interrupt)
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(hint) from None
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, interrupt)
        signal.set_wakeup_fd(before)
        signals.close()  # ends the watcher's wait
        watcher.join()
        ours.close()


def _interrupt(number: int, frame: FrameType | None) -> None:
    """Do what SIGINT does, which asyncio may have replaced; no second signal is sent, which would kill."""
    handler = signal.getsignal(signal.SIGINT)
    assert callable(handler), "set in `stoppable`"
    handler(signal.SIGINT, frame)


def _watch(signals: socket.socket, hint: str) -> None:
    if not _next(signals):
        return
    print("\nStopping ... (Ctrl-C again: at once)", file=sys.stderr, flush=True)
    signals.settimeout(GRACE_S)
    try:
        if not _next(signals):
            return
    except TimeoutError:
        pass
    print(
        f"Stopped before the cleanup finished; the next start completes it. {hint}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STOPPED)


def _next(signals: socket.socket) -> bool:
    """Wait for SIGINT or SIGTERM; return False when the command has ended instead."""
    while received := signals.recv(1):
        if received[0] in (signal.SIGINT, signal.SIGTERM):
            return True
    return False
