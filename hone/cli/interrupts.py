"""Ctrl-C: stop cleanly, and within ten seconds whatever hangs.

The first Ctrl-C (or SIGTERM) reaches Python as KeyboardInterrupt, through which asyncio cancels what runs. A
thread of its own sees the signal too, even while the main thread is deep in a tensor operation, and ends the
process when the time is over: a run survives being killed at any moment.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from hone.cli.errors import STOPPED, Stopped

GRACE_S = 8.0


@contextmanager
def stoppable(hint: str) -> Generator[None]:
    """Turn Ctrl-C and SIGTERM into Stopped; `hint` is the sentence that says how to continue."""
    ours, signals = socket.socketpair()
    signals.setblocking(False)
    done = threading.Event()
    watcher = threading.Thread(target=_watch, args=(ours, done, hint), daemon=True, name="interrupts")
    watcher.start()
    before = signal.set_wakeup_fd(signals.fileno(), warn_on_full_buffer=False)
    # A job that a script put in the background inherits SIGINT ignored; asyncio then would not cancel on it.
    interrupt = signal.signal(signal.SIGINT, signal.default_int_handler)
    terminate = signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))
    try:
        yield
    except KeyboardInterrupt:
        raise Stopped(hint) from None
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
        f"Stopped before everything was tidied up; the next start does that. {hint}",
        file=sys.stderr,
        flush=True,
    )
    os._exit(STOPPED)
