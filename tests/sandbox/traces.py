"""What an owner has on this machine, found by looking and not by asking Hone."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path


def traces(owner_pid: int, state_dir: Path) -> list[str]:
    """Processes, cgroups, directories and mounts that carry the name of an owner process."""
    name = f"-{owner_pid}-"
    found = [f"directory {path}" for path in state_dir.iterdir() if name in path.name]
    found += [
        f"cgroup {folder}/{child}"
        for folder, children, _ in os.walk("/sys/fs/cgroup")  # passes over what ends meanwhile
        if Path(folder).name == "hone"
        for child in children
        if name in child
    ]
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


def mount_namespaces(pids: Iterable[str]) -> set[str]:
    """Mount namespaces that some of these processes is in, this process's own left out."""
    found: set[str] = set()
    for pid in pids:
        try:
            found.add(str(Path(f"/proc/{pid}/ns/mnt").readlink()))
        except OSError:  # it has ended, is not a process, or is not ours to look at
            continue
    return found - {str(Path("/proc/self/ns/mnt").readlink())}


def _namespace() -> int:
    return Path("/proc/self/ns/pid").stat().st_ino
