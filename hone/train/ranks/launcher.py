"""Start the ranks of this machine through torch's elastic launcher, and stop them.

The environment of each rank is torchrun's. The run hosts the store through which ranks find each other, on a
port that the system chose, so no other process can take it in between.
"""

# pyright: reportUnknownMemberType=false, reportUnknownArgumentType=false, reportUnknownVariableType=false
from __future__ import annotations

import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.elastic.multiprocessing import (
    DefaultLogsSpecs,
    LogsDest,
    SubprocessContext,
    start_processes,
)

from hone.utils.devices import visible_devices

WORKER = "hone.train.ranks.worker"
STOP_S = 10.0  # from SIGTERM to SIGKILL
_TAIL_BYTES = 1500
_ELASTIC_LOGGER = "torch.distributed.elastic"


class RankProcesses:
    """The processes of all ranks, on one machine. `stop` must be called."""

    def __init__(
        self,
        ranks: int,
        *,
        connection: Mapping[str, str],
        logs: Path,
        attempt: int = 0,
        devices: Sequence[int] | None = None,
    ) -> None:
        """Start `ranks` processes.

        `connection`: the variables of `RankListener.environment`. `devices`: the GPUs of the ranks, in order;
        None: all that this process may use. Each rank writes `logs/rank-N.log`, after the first restart
        `rank-N.1.log`, and so on.
        """
        self._store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
        logs.mkdir(parents=True, exist_ok=True)
        suffix = f".{attempt}" if attempt else ""
        self._logs = [logs / f"rank-{rank}{suffix}.log" for rank in range(ranks)]
        shared = {
            **connection,
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(self._store.port),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS") or str(threads_of(ranks)),
        }
        if devices is not None:
            shared["CUDA_VISIBLE_DEVICES"] = visible_devices(devices)
        logging.getLogger(_ELASTIC_LOGGER).setLevel(
            logging.CRITICAL
        )  # it logs each ordinary stop as a warning
        with _signal_handlers_kept():
            self._context = start_processes(
                name="rank",
                entrypoint=sys.executable,
                args=dict.fromkeys(range(ranks), ("-m", WORKER)),
                envs={r: {**shared, "RANK": str(r), "LOCAL_RANK": str(r)} for r in range(ranks)},
                logs_specs=_OneFilePerRank(self._logs),
            )

    @property
    def pids(self) -> list[int]:
        """Process ids, by rank."""
        found = self._context.pids()
        return [found[rank] for rank in sorted(found)]

    def exit_code(self, rank: int, within_s: float = 0.0) -> int | None:
        """Return the exit code, negative for a signal; None if the rank runs for `within_s` more."""
        process = self._process(rank)
        deadline = time.monotonic() + within_s
        while process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.01)
        return process.returncode

    def dead(self) -> list[int]:
        """Return the ranks whose processes have ended."""
        return [rank for rank in range(len(self._logs)) if self.exit_code(rank) is not None]

    def log(self, rank: int) -> tuple[Path, str]:
        """Return the log file of a rank and its last lines."""
        return self._logs[rank], tail(self._logs[rank])

    def stop(self) -> None:
        """Stop the processes that still run: SIGTERM, and SIGKILL after 10 seconds. Idempotent."""
        self._context.close(signal.SIGTERM, timeout=int(STOP_S))

    def _process(self, rank: int) -> Any:
        assert isinstance(self._context, SubprocessContext), "the entry point is a command"
        return self._context.subprocess_handlers[rank].proc


def tail(path: Path) -> str:
    """Return the last lines of a log file; empty without a file."""
    try:
        with path.open("rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL_BYTES))
            return file.read().decode(errors="replace").strip()
    except OSError:
        return ""


def threads_of(ranks: int) -> int:
    """Return the CPU threads of each rank, so that all ranks together use each core once."""
    return max(1, len(os.sched_getaffinity(0)) // ranks)


class _OneFilePerRank(DefaultLogsSpecs):
    """Standard error of each rank in one file; the worker sends its standard output there, too."""

    def __init__(self, files: Sequence[Path]) -> None:
        super().__init__(log_dir=os.devnull)
        self._files = files

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        nowhere = dict.fromkeys(envs, os.devnull)
        return LogsDest(
            stdouts=nowhere,
            stderrs={rank: str(self._files[rank]) for rank in envs},
            tee_stdouts={},
            tee_stderrs={},
            error_files=nowhere,
            filtered_stdout="",
            filtered_stderr="",
        )


@contextmanager
def _signal_handlers_kept() -> Generator[None]:
    """Undo the signal handlers that the elastic launcher installs when it runs in the main thread."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    names = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    before = {name: signal.getsignal(name) for name in names}
    try:
        yield
    finally:
        for name, handler in before.items():
            signal.signal(name, handler)
