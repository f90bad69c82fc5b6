"""Control groups: limits on memory, processes and CPU, where this user may set them.

cgroup v1 has one tree per controller, v2 one for all; both become a map from controller to directory. Groups
are named `hone/<owner>/<number>`, so that a clean-up can tell whether their owner is alive.
"""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from hone.sandbox.contract import Limits
from hone.sandbox.namespaces.syscalls import write_file as _write

CONTROLLERS = ("memory", "pids", "cpu")
_PERIOD_US = 100_000
# CPU weight of the groups above the sandboxes, in processes. With 1, all sandboxes together would get the
# time of one process, and on a busy machine every start and command would wait for it.
_WEIGHT = 8
# The memory limit of version 1 leaves out the buffers of TCP and UDP sockets, for which it has a limit apart.
_SOCKETS_FILE, _SOCKETS_MIN = "memory.kmem.tcp.limit_in_bytes", 4 << 20
_IDLE_MAX = 64  # empty groups kept for reuse, per owner


def find_roots() -> dict[str, str]:
    """Return {controller: writable directory .../hone}, made if missing; unusable controllers are absent."""
    roots: dict[str, str] = {}
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, right = line.split(" - ", 1)
        mountpoint = left.split()[4]
        kind, _, options = right.split(" ", 2)
        if kind == "cgroup":
            for controller in set(options.split(",")) & set(CONTROLLERS):
                if base := _make_root(mountpoint):
                    roots[controller] = base
        elif kind == "cgroup2":
            for controller, base in _find_unified(mountpoint).items():
                roots.setdefault(controller, base)
    return roots


def _make_root(parent: str) -> str | None:
    """Return `parent`/hone, or None if this user may not create it."""
    base = f"{parent}/hone"
    try:
        os.makedirs(base, 0o755, exist_ok=True)
    except OSError:
        return None
    return base if os.access(base, os.W_OK) else None


def _find_unified(mountpoint: str) -> dict[str, str]:
    """Return the v2 controllers of the top of the tree, else of this process's own group if delegated."""
    own = next(
        (line[3:] for line in Path("/proc/self/cgroup").read_text().splitlines() if line[:3] == "0::"), "/"
    )
    for parent in dict.fromkeys((mountpoint, mountpoint + own.rstrip("/"))):
        if not os.access(f"{parent}/cgroup.subtree_control", os.W_OK):
            continue
        offered = Path(f"{parent}/cgroup.controllers").read_text().split()
        wanted = [controller for controller in CONTROLLERS if controller in offered]
        if not wanted:
            continue
        try:
            _delegate(parent, wanted)
            base = _make_root(parent)
            if base:
                _delegate(base, wanted)
        except OSError:  # EBUSY: the group itself has processes; try the next one
            continue
        if base:
            return dict.fromkeys(wanted, base)
    return {}


def _delegate(directory: str, controllers: Iterable[str]) -> None:
    _write(f"{directory}/cgroup.subtree_control", " ".join(f"+{name}" for name in controllers))


def limits_sockets(roots: Mapping[str, str]) -> bool:
    """Return whether the groups limit the buffers of IP sockets."""
    base = roots.get("memory")
    names = ("cgroup.controllers", _SOCKETS_FILE)  # version 2; version 1, which may lack it
    return base is not None and any(os.path.exists(f"{base}/{name}") for name in names)


def open_owner(roots: Mapping[str, str], owner: str) -> None:
    """Make the groups above an owner's sandboxes."""
    for controller, base in roots.items():
        os.makedirs(f"{base}/{owner}", 0o755, exist_ok=True)
        unified = os.path.exists(f"{base}/cgroup.controllers")
        if unified:
            _delegate(f"{base}/{owner}", [controller])
        if controller == "cpu":
            name, normal = ("cpu.weight", 100) if unified else ("cpu.shares", 1024)
            for directory in (base, f"{base}/{owner}"):
                _write(f"{directory}/{name}", str(_WEIGHT * normal))


class Groups:
    """Pool of the groups of an owner's sandboxes, one group per tree.

    An empty group is reused by the next sandbox with equal limits: making and removing one costs 1 ms.
    """

    def __init__(self, roots: Mapping[str, str], owner: str) -> None:
        self._roots, self._owner = roots, owner
        self._idle: dict[Limits, list[list[str]]] = {}
        self._made = 0

    def take(self, limits: Limits) -> list[str]:
        """Return directories of groups with these limits and no process."""
        idle = self._idle.get(limits)
        return idle.pop() if idle else self._make(limits)

    def release(self, limits: Limits, directories: list[str]) -> None:
        """Keep or remove groups, which have no process any more."""
        if sum(map(len, self._idle.values())) < _IDLE_MAX:
            self._idle.setdefault(limits, []).append(directories)
        else:
            for directory in directories:
                remove(directory)

    def close(self) -> None:
        """Remove the idle groups and the owner's group above them."""
        for groups in self._idle.values():
            for directory in itertools.chain(*groups):
                remove(directory)
        for base in set(self._roots.values()):
            remove(f"{base}/{self._owner}")

    def _make(self, limits: Limits) -> list[str]:
        self._made += 1
        directories = [f"{base}/{self._owner}/g{self._made}" for base in dict.fromkeys(self._roots.values())]
        try:
            for directory in directories:
                os.makedirs(directory, 0o755, exist_ok=True)
            for controller, base in self._roots.items():
                unified = os.path.exists(f"{base}/cgroup.controllers")
                _set(f"{base}/{self._owner}/g{self._made}", controller, limits, unified=unified)
        except OSError:
            for directory in directories:
                remove(directory)
            raise
        return directories


def _set(directory: str, controller: str, limits: Limits, *, unified: bool) -> None:
    memory = str(limits.memory_mib << 20)
    quota = int(limits.cpus * _PERIOD_US)
    if controller == "pids":
        _write(f"{directory}/pids.max", str(limits.pids + 2))  # bubblewrap and process 1 come on top
    elif controller == "memory" and unified:
        _write(f"{directory}/memory.max", memory)
        if os.path.exists(f"{directory}/memory.swap.max"):
            _write(f"{directory}/memory.swap.max", "0")
    elif controller == "memory":
        _write(f"{directory}/memory.limit_in_bytes", memory)
        if os.path.exists(f"{directory}/memory.memsw.limit_in_bytes"):
            _write(f"{directory}/memory.memsw.limit_in_bytes", memory)
        if os.path.exists(f"{directory}/{_SOCKETS_FILE}"):
            _write(f"{directory}/{_SOCKETS_FILE}", str(max(_SOCKETS_MIN, (limits.memory_mib << 20) // 8)))
    elif unified:
        _write(f"{directory}/cpu.max", f"{quota} {_PERIOD_US}")
    else:
        _write(f"{directory}/cpu.cfs_quota_us", str(quota))


def enter(directories: Iterable[str]) -> None:
    """Move the calling process, which has one thread, into the groups."""
    for directory in directories:
        # Moving one thread is immediate; moving a process waits until no other process forks: 10 ms.
        tasks = f"{directory}/tasks"
        _write(tasks if os.path.exists(tasks) else f"{directory}/cgroup.procs", "0")


def members(directory: str) -> list[int]:
    """Return the process ids in the group; none when it is gone."""
    try:
        return [int(pid) for pid in Path(f"{directory}/cgroup.procs").read_text().split()]
    except FileNotFoundError:
        return []


def remove(directory: str) -> bool:
    """Remove a group; return False while processes are in it."""
    try:
        os.rmdir(directory)
    except FileNotFoundError:
        return True
    except OSError as error:
        if error.errno not in (errno.EBUSY, errno.ENOTEMPTY):
            raise
        return False
    return True
