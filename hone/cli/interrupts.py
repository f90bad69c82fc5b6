"""Ctrl-C stops a command cleanly, and within ten seconds even if something hangs.

The first Ctrl-C (or SIGTERM) raises KeyboardInterrupt, on which asyncio cancels its tasks. A separate thread
sees the signal too, even while the main thread is inside a tensor operation, and exits the process after
GRACE_S; a run can be killed at any moment without loss.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from hone.cli.errors import STOPPED, Interrupted

GRACE_S = 8.0


@contextmanager
def stoppable(hint: str) -> Generator[None]:
    """Turn Ctrl-C and SIGTERM into Interrupted; `hint` tells the user how to continue."""
    ours, signals = socket.socketpair()
    signals.setblocking(False)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ours, done, hint), daemon=True, name="interrupts")
    watcher.start()
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    # A background job of a shell script inherits SIGINT as ignored; asyncio would then not cancel on it.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        raise Interrupted(hint) from None
    finally:
        signal.signal(signal.SIGTERM, terminate)
        signal.signal(signal.SIGINT, interrupt)
        signal.set_wakeup_fd(before)
        done.set()
        signals.close()  # ends the watcher's wait
        watcher.join()
        ours.close()


def _watch(signals: socket.socket, done: threading.Event, hint: str) -> None:
    while True:
        received = signals.recv(1)
        if not received:
            return
        if received[0] in (signal.SIGINT, signal.SIGTERM):
            break
    print("\nStopping ...", file=sys.stderr, flush=True)
    if done.wait(GRACE_S):
        return
    print(
        f"Stopped before the cleanup finished; the next start completes it. {hint}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STOPPED)
