"""Send metrics to an experiment tracker in a process of its own, which cannot stop or slow the run.

    write -> bounded queue -> thread -> stdin of `hone.train.sinks.worker` -> tracker

A failure prints one warning; `metrics.jsonl` and TensorBoard hold all metrics in any case.
"""

from __future__ import annotations

import importlib.util
import json
import math
import queue
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from hone.train.errors import TrainError
from hone.train.settings import MetricsSettings
from hone.utils.processes import kill_group

QUEUE = 1000  # records that wait for a slow tracker; more are dropped
CLOSE_TIMEOUT_S = 60.0  # a finished run waits this long for its last records to be sent
ABANDON_TIMEOUT_S = 3.0  # a run that is stopped must end within 10 s
WORKER = (sys.executable, "-P", "-m", "hone.train.sinks.worker")


class ProcessSink:
    """One tracker of a run, a `MetricsSink`. `write` never blocks and never raises."""

    def __init__(
        self,
        options: Mapping[str, Any],
        warn: Callable[[str], None],
        *,
        command: Sequence[str] = WORKER,
        close_timeout_s: float = CLOSE_TIMEOUT_S,
    ) -> None:
        """`options` are those of `hone.train.sinks.trackers`."""
        self._name: str = options["tracker"]
        folder = Path(options["folder"])
        folder.mkdir(parents=True, exist_ok=True)
        self._log = folder / "output.log"
        self._warn = warn
        self._close_timeout_s = close_timeout_s
        self._warned = threading.Lock()  # acquired by the first warning
        self._written = self._dropped = 0
        self._queue: queue.SimpleQueue[str | None] = queue.SimpleQueue()
        with self._log.open("w") as log:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                encoding="utf-8",
                start_new_session=True,  # Ctrl-C is for the run, which then closes its sinks
            )
        self._queue.put(json.dumps(dict(options)))
        self._thread = threading.Thread(target=self._send, name=f"metrics to {self._name}", daemon=True)
        self._thread.start()

    def write(self, kind: str, step: int, metrics: Mapping[str, float]) -> None:
        self._written += 1
        if self._queue.qsize() >= QUEUE:
            self._dropped += 1
            self._warn_once("it takes metrics more slowly than the run makes them")
            return
        finite = {name: value for name, value in metrics.items() if math.isfinite(value)}
        self._queue.put(json.dumps({"kind": kind, "step": step, "metrics": finite}))

    def close(self, *, failed: bool = False) -> None:
        """Wait until all records are sent, for a bounded time; then kill the tracker's processes."""
        timeout_s = ABANDON_TIMEOUT_S if failed else self._close_timeout_s
        self._queue.put(None)
        try:
            if self._process.wait(timeout_s):
                self._warn_once(self._reason())
        except subprocess.TimeoutExpired:
            self._warn_once(f"it did not finish within {timeout_s:g} s")
            kill_group(self._process.pid)
            self._process.wait()
        self._thread.join(1.0)  # its pipe is closed, unless a process outside the group inherited it
        self._dropped += max(0, self._queue.qsize() - 1)
        if self._dropped:
            self._warn(f"{self._name} lacks at least {self._dropped} of {self._written} records")

    def _send(self) -> None:
        """Pass records on until `close` or the end of the process."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as stdin:
            while (line := self._queue.get()) is not None:
                stdin.write(line + "\n")
                stdin.flush()
            return
        self._process.wait()
        self._warn_once(self._reason())

    def _warn_once(self, reason: str) -> None:
        if self._warned.acquire(blocking=False):
            self._warn(
                f"metrics may no longer reach {self._name}: {reason} (log: {self._log}). The run continues, "
                "and metrics.jsonl has all metrics."
            )

    def _reason(self) -> str:
        lines = self._log.read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"its process ended with exit code {self._process.returncode}"


def open_sinks(
    settings: MetricsSettings, run_dir: Path, config: Mapping[str, Any], warn: Callable[[str], None]
) -> list[ProcessSink]:
    """Start the trackers of `settings`; their files are in `run_dir/sinks/<tracker>`.

    `config` holds the settings of the run, for display. Raises TrainError if a package is not installed.
    """
    missing = [name for name in settings.sinks if importlib.util.find_spec(name) is None]
    if missing:
        raise TrainError(
            f"metrics.sinks has {missing[0]}, which is not installed: pip install "
            f"'hone-rl[{missing[0]}]', or remove it"
        )
    return [
        ProcessSink(
            {
                "tracker": name,
                "project": settings.project,
                "run_name": settings.run_name or run_dir.resolve().name,
                "offline": settings.offline,
                "folder": str((run_dir / "sinks" / name).resolve()),
                "config": dict(config),
            },
            warn,
        )
        for name in settings.sinks
    ]
