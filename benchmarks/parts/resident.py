"""Resident memory of this process, and its growth by some work."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable
from pathlib import Path

# for `subprocess`: freed arrays go back to the system at once, so peaks are those of the live arrays
ENVIRONMENT = {
    "MALLOC_MMAP_THRESHOLD_": "65536",
    "MALLOC_TRIM_THRESHOLD_": "65536",
    "MALLOC_ARENA_MAX": "1",
}


def environment() -> dict[str, str]:
    """Return this process's environment for one whose memory is measured."""
    return {**os.environ, **ENVIRONMENT}


def resident(field: str) -> int:
    """Return VmRSS or VmHWM of this process in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) * 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def peak_growth(work: Callable[[], object]) -> int:
    """Run `work`; return by how many bytes the peak of resident memory exceeds that before it."""
    gc.collect()
    before = resident("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # resets VmHWM
    work()
    return resident("VmHWM") - before
