"""The host's users that own sandboxes, where Hone runs as root."""

from __future__ import annotations

import os
import signal

from hone.sandbox.namespaces import syscalls
from hone.sandbox.namespaces.plan import Plan
from hone.sandbox.namespaces.syscalls import write_file

# Host UIDs of sandboxes when Hone runs as root, which no service manager assigns. Each sandbox has its own
# while there are enough, because the kernel counts some resources per user (inotify watches, pipe memory,
# message queues), and a count is also a way to meet.
SANDBOX_UIDS = range(60706, 60962)


def can_change_user() -> bool:
    """Return whether this process is root in a user namespace that maps SANDBOX_UIDS."""
    with open("/proc/self/uid_map") as file:
        rows = [line.split() for line in file]
    ranges = [range(int(first), int(first) + int(count)) for first, _, count in rows]
    mapped = any(SANDBOX_UIDS[0] in uids and SANDBOX_UIDS[-1] in uids for uids in ranges)
    return os.geteuid() == 0 and mapped


class HostUser:
    """One of SANDBOX_UIDS, with user namespaces that map the owners of host files to it. Only as root."""

    def __init__(self, uid: int) -> None:
        self.uid = uid
        self._maps: dict[tuple[int, int], int] = {}

    def map_of(self, uid: int, gid: int) -> int:
        """Return a descriptor of the user namespace that maps `uid`, `gid` to this user."""
        if (uid, gid) not in self._maps:
            self._maps[uid, gid] = self._make(uid, gid)
        return self._maps[uid, gid]

    def prepare(self, plan: Plan) -> None:
        """Make the maps that the plan needs, in the server, so that later children share them."""
        for path in _translated(plan):
            info = os.stat(path)
            self.map_of(info.st_uid, info.st_gid)

    def _make(self, uid: int, gid: int) -> int:
        ready, ready_write = os.pipe()
        pid = os.fork()
        if pid == 0:
            try:
                syscalls.unshare(syscalls.CLONE_NEWUSER)
                os.write(ready_write, b"x")
                signal.pause()
            finally:
                os._exit(1)
        os.close(ready_write)
        try:
            if os.read(ready, 1) != b"x":
                raise OSError("cannot make a user namespace")
            for name, number in (("uid_map", uid), ("gid_map", gid)):
                write_file(f"/proc/{pid}/{name}", f"{number} {self.uid} 1")
            return os.open(f"/proc/{pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
        finally:
            os.close(ready)
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def _translated(plan: Plan) -> list[str]:
    overlays = plan.base.overlays
    lowers = [path for overlay in overlays if overlay.translated for path in overlay.lowers]
    return lowers + [source for source, _ in plan.mounts]
