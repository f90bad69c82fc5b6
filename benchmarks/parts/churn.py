"""Sandboxes of one provider started and closed without end, its owner killed with -9, and what is left.

What is left is counted by process, mount, directory and cgroup, from /proc and the file systems and not by
asking Hone.
"""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from pathlib import Path

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.services.process import control_groups

BUSY = "setsid sleep 1000 & (sleep 1000 &); echo data > file"


def churn_with_a_kill(state_dir: Path, count: int, concurrency: int) -> dict[str, float]:
    """Use `count` sandboxes; half of them are made by a process that is killed with -9, while some are open.

    Returns what is left of both owners at the end.
    """
    settings = SandboxSettings(state_dir=state_dir)
    dead = _churn_and_die(settings, count // 2, concurrency)
    print("after the kill:", _left_over([dead], state_dir), flush=True)
    asyncio.run(_churn(settings, count - count // 2, concurrency, report=False))
    return _left_over([dead, os.getpid()], state_dir)


async def _churn(settings: SandboxSettings, count: int, concurrency: int, *, report: bool) -> None:
    """Start, use and close `count` sandboxes; with `report`, tell each close on stdout."""
    left = iter(range(count))

    async def worker() -> None:
        for _ in left:
            async with await provider.start(SandboxSpec()) as sandbox:
                result = await sandbox.exec(BUSY)
                assert result.exit_code == 0, result
            if report:
                print("closed", flush=True)

    async with make_provider(settings) as provider, asyncio.TaskGroup() as group:
        for _ in range(concurrency):
            group.create_task(worker())


def _churn_and_die(settings: SandboxSettings, count: int, concurrency: int) -> int:
    """Let another process churn without end, and kill it and its server at the `count`-th close."""
    command = [sys.executable, "-m", "benchmarks.parts.churn", str(settings.state_dir), str(concurrency)]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as owner:
        assert owner.stdout is not None
        for _ in range(count):
            assert owner.stdout.readline() == b"closed\n"
        server = next(pid for pid, line in _command_lines().items() if _is_spawner_of(line, owner.pid))
        os.kill(server, signal.SIGKILL)
        owner.kill()
    return owner.pid


def _is_spawner_of(command: str, owner_pid: int) -> bool:
    return f"-{owner_pid}-" in command and "hone-spawner:" in command


def _command_lines() -> dict[int, str]:
    found: dict[int, str] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                found[int(entry.name)] = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
    return found


def _left_over(owner_pids: list[int], state_dir: Path) -> dict[str, float]:
    """What carries an owner's name."""
    names = [f"-{pid}-" for pid in owner_pids]

    def named(text: str) -> bool:
        return any(name in text for name in names)

    commands = [line for line in _command_lines().values() if "hone-s" in line and named(line)]
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    groups = [group for name in names for group in control_groups(name) if Path(group).parent.name == "hone"]
    return {
        "processes_left": len(commands),
        "mounts_left": len([line for line in mounts if str(state_dir) in line]),
        "directories_left": len(list(state_dir.iterdir())),
        "cgroups_left": len(groups),
    }


if __name__ == "__main__":
    endless = SandboxSettings(state_dir=Path(sys.argv[1]))
    asyncio.run(_churn(endless, 1 << 30, int(sys.argv[2]), report=True))
