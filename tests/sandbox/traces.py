"""Find the resources of an owner on this machine without Hone's code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from tests.services.process import control_groups


def traces(owner_pid: int, state_dir: Path) -> list[str]:
    """Return processes, cgroups, directories and mounts with the name of an owner process."""
    name = f"-{owner_pid}-"
    found = [f"directory {path}" for path in state_dir.iterdir() if name in path.name]
    found += [f"cgroup {group}" for group in control_groups(name) if Path(group).parent.name == "hone"]
    labels = (f"hone-sandbox:{_namespace()}{name}", f"hone-spawner:{_namespace()}{name}")
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            command = (entry / "cmdline").read_bytes().decode("utf-8", "replace")
            groups = (entry / "cgroup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if any(label in command for label in labels) or (name in groups and "/hone/" in groups):
            found.append(f"process {entry.name} {command}")
    mounts = Path("/proc/self/mountinfo").read_text().splitlines()
    return found + [f"mount {line}" for line in mounts if str(state_dir) in line]


@contextmanager
def held_mount_namespaces(pids: Iterable[str]) -> Iterator[set[int]]:
    """Yield the inodes of these processes' mount namespaces, held open so that they are not reused."""
    with ExitStack() as stack:
        files = [stack.enter_context(Path(f"/proc/{pid}/ns/mnt").open("rb")) for pid in pids]
        yield {os.fstat(file.fileno()).st_ino for file in files} - {_inode("/proc/self/ns/mnt")}


def used_mount_namespaces() -> set[int]:
    """Return the inodes of the mount namespaces of all processes."""
    found: set[int] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):  # it has ended, or is not ours to look at
                found.add(_inode(f"{entry}/ns/mnt"))
    return found


def _inode(path: str) -> int:
    return Path(path).stat().st_ino


def _namespace() -> int:
    return _inode("/proc/self/ns/pid")
