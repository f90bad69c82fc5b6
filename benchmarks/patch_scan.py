"""CPU time of reading what an agent wrote: patches, commands and replies that are built to be slow to read.

    python benchmarks/patch_scan.py [--kib 1024]

Each input is read at a quarter of the size and at the whole size. It prints the seconds per MiB at both, the
ratio of the two (1: the time grows with the size) and how long a patch kept other threads from running. The
last line is JSON.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import threading
import time
from collections.abc import Callable

from benchmarks.parts.costly_patches import COMMANDS, PATCHES, REPLIES, Make, task
from hone.agents.debugger.agent import CallError, parse_call
from hone.agents.scaffold import load_scaffold
from hone.environment import PatchRefused, filter_patch, parse_patch
from hone.grading.integrity import scan_patch, scan_trajectory
from hone.grading.integrity.trajectory import MAX_COMMAND
from hone.grading.plan import protected_paths
from hone.policy.reply import Reply
from hone.types import Turn

_TASK = task()
_PROTECTED = protected_paths(_TASK)
_SCAFFOLD = load_scaffold("default")
_TICK_S = 0.001


def read_patch(patch: str) -> None:
    """Read a patch as the grader does before it starts a sandbox."""
    with contextlib.suppress(PatchRefused):
        filter_patch(patch, _PROTECTED)
        scan_patch(parse_patch(patch), _TASK)


def read_commands(text: str) -> None:
    """Scan a trajectory whose turns are as long as is read of one."""
    actions = [text[start : start + MAX_COMMAND] for start in range(0, len(text), MAX_COMMAND)]
    scan_trajectory(
        [
            Turn(index=i, node=None, reply="", action=action, exit_code=0, observation="", seconds=0.0)
            for i, action in enumerate(actions)
        ]
    )


def read_reply(text: str) -> None:
    """Read the call in a reply, as each agent does."""
    _SCAFFOLD.actions(text)
    with contextlib.suppress(CallError):
        parse_call(Reply(content=text, node=None), native=False)


READERS: dict[str, tuple[Callable[[str], None], dict[str, Make]]] = {
    "patches": (read_patch, PATCHES),
    "commands": (read_commands, COMMANDS),
    "replies": (read_reply, REPLIES),
}


def cpu_s(read: Callable[[str], None], text: str) -> float:
    start = time.process_time()
    read(text)
    return time.process_time() - start


def hold_ms(read: Callable[[str], None], text: str) -> float:
    """Return the longest time that a thread beside the reader did not run."""
    thread = threading.Thread(target=read, args=(text,))
    longest, last = 0.0, time.perf_counter()
    thread.start()
    while thread.is_alive():
        time.sleep(_TICK_S)
        now = time.perf_counter()
        longest, last = max(longest, now - last), now
    return longest * 1000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--kib", type=int, default=1024, help="whole size of each input")
    size: int = parser.parse_args().kib * 1024
    metrics: dict[str, float] = {}
    ratios: dict[str, float] = {}
    for group, (read, makers) in READERS.items():
        read("")
        rows: list[tuple[float, float, float, str]] = []
        for name, make in makers.items():
            small, whole = cpu_s(read, make(size // 4)), cpu_s(read, make(size))
            held = hold_ms(read, make(size)) if read is read_patch else 0.0
            per_mib, ratio = whole * 2**20 / size, whole / (4 * max(small, 1e-3))
            rows.append((per_mib, ratio, held, name))
            print(f"{group:9} {name!r:36} {per_mib:6.2f} s/MiB, ratio {ratio:5.2f}, held {held:5.1f} ms")
        metrics[f"{group}_inputs"] = len(rows)
        metrics[f"{group}_worst_s_per_mib"] = round(max(row[0] for row in rows), 3)
        metrics[f"{group}_longest_hold_ms"] = round(max(row[2] for row in rows), 1)
        ratios[f"{group}_worst_growth"] = round(max(row[1] for row in rows), 2)
    print(json.dumps({"name": "patch_scan", "metrics": metrics, "peers": {}, "ratios": ratios}))


if __name__ == "__main__":
    main()
