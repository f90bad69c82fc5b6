"""Start and close many sandboxes, kill an owner with -9 in the middle, and count what is left.

    python benchmarks/soak_sandboxes.py [--sandboxes 1000] [--concurrency 4]

Half of the sandboxes are made by a process that is killed with -9 (its spawn server, too) while some are
open; this process then makes the other half. What is left is counted by process, mount, directory and
cgroup, from /proc and the file systems and not by asking Hone. The last line is JSON.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

_BUSY = "setsid sleep 1000 & (sleep 1000 &); echo data > file"


async def churn(settings: SandboxSettings, count: int, concurrency: int, *, report: bool) -> None:
    """Start, use and close `count` sandboxes; with `report`, tell each close on stdout."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            async with await provider.start(SandboxSpec()) as sandbox:
                result = await sandbox.exec(_BUSY)
                assert result.exit_code == 0, result
            if report:
                print("closed", flush=True)

    async with make_provider(settings) as provider, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def churn_and_die(settings: SandboxSettings, count: int, concurrency: int) -> int:
    """Let another process churn without end, and kill it and its server at the `count`-th close."""
    command = [
        sys.executable,
        __file__,
        "--child",
        str(settings.state_dir),
        "--concurrency",
        str(concurrency),
    ]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as owner:
        assert owner.stdout is not None
        for _ in range(count):
            assert owner.stdout.readline() == b"closed\n"
        server = next(pid for pid, line in command_lines().items() if is_spawner_of(line, owner.pid))
        os.kill(server, signal.SIGKILL)
        owner.kill()
    return owner.pid


def is_spawner_of(command: str, owner_pid: int) -> bool:
    return f"-{owner_pid}-" in command and "hone-spawner:" in command


def command_lines() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def left_over(owner_pids: list[int], state_dir: Path) -> dict[str, float]:
    """What carries an owner's name."""
    names = [f"-{pid}-" for pid in owner_pids]

    def named(text: str) -> bool:
        return any(name in text for name in names)

    commands = [line for line in command_lines().values() if "hone-s" in line and named(line)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    groups = [path for path in Path("/sys/fs/cgroup").glob("**/hone/*") if named(path.name)]
    return {
        "processes_left": len(commands),
        "mounts_left": len([line for line in mounts if str(state_dir) in line]),
        "directories_left": len(list(state_dir.iterdir())),
        "cgroups_left": len(groups),
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sandboxes", type=int, default=1000, help="how many in all")
    parser.add_argument("--concurrency", type=int, default=4, help="how many at a time")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        endless = SandboxSettings(state_dir=options.child)
        asyncio.run(churn(endless, 1 << 30, options.concurrency, report=True))
        return
    with tempfile.TemporaryDirectory() as folder:
        settings = SandboxSettings(state_dir=Path(folder) / "state")
        assert settings.state_dir is not None
        started = time.perf_counter()
        dead = churn_and_die(settings, options.sandboxes // 2, options.concurrency)
        after_kill = left_over([dead], settings.state_dir)
        asyncio.run(
            churn(settings, options.sandboxes - options.sandboxes // 2, options.concurrency, report=False)
        )
        seconds = time.perf_counter() - started
        metrics = left_over([dead, os.getpid()], settings.state_dir)
    print("after the kill:", after_kill)
    metrics |= {"sandboxes": options.sandboxes, "seconds": round(seconds, 1)}
    print(json.dumps({"name": "soak_sandboxes", "metrics": metrics, "peers": {}, "ratios": {}}))


if __name__ == "__main__":
    main()
