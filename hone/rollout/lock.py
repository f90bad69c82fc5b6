"""One process per run directory."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path

from hone.rollout.errors import LedgerError


class RunLock:
    """Held from construction to `close`; the kernel releases it when the process dies.

    Raises LedgerError, which names the holder's pid, when another process holds it.
    """

    def __init__(self, run_dir: Path) -> None:
        run_dir.mkdir(parents=True, exist_ok=True)
        self._file = (run_dir / "lock").open("a+")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.seek(0)
            pid = self._file.read().strip() or "unknown"
            self._file.close()
            raise LedgerError(
                f"{run_dir} is in use by process {pid}: wait for it, stop it, or choose another run directory"
            ) from None
        self._file.truncate(0)
        self._file.write(str(os.getpid()))
        self._file.flush()

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> RunLock:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()
