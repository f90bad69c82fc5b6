"""Peak memory of a job with all its child processes."""

from __future__ import annotations

import threading

import psutil

EVERY_S = 1.0
GIB = 1 << 30


class PeakMemory:
    """Samples the resident memory of this process and all its descendants once a second.

    Shared pages count once per process, so the figure is an upper bound.
    """

    def __init__(self) -> None:
        self.gib = 0.0  # peak so far
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True, name="peak-memory")

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        me = psutil.Process()
        while True:
            self.gib = max(self.gib, sum(map(_resident, [me, *me.children(recursive=True)])) / GIB)
            if self._done.wait(EVERY_S):
                return


def _resident(process: psutil.Process) -> int:
    try:
        return process.memory_info().rss
    except psutil.NoSuchProcess:  # exited after it was listed
        return 0
