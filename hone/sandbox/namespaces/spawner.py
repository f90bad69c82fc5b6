"""The spawn server: a small process that forks sandboxes, so that a trainer of many gigabytes never has to.

`main([OWNER, OWNER_PID])` in a fresh interpreter, with a SOCK_SEQPACKET control socket as standard
input. One JSON message per packet:

    -> {"op": "start", "plan": {...}} with the sandbox's channel as passed descriptor
    -> {"op": "close", "id": ...}       a sandbox ends when its channel closes; this sets a deadline
    <- {"event": "exited", "id": ..., "error": ...}   everything of the sandbox is gone, its cgroups too

It ends with its owner, however the owner ends, and takes every sandbox with it.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from hone.sandbox.contract import Limits
from hone.sandbox.namespaces import cgroups, syscalls
from hone.sandbox.namespaces.rootfs import SANDBOX_UID, OwnerMaps, Plan, become_sandbox

PACKET_MAX = 1 << 17
GRACE_S = 2.0  # from a closed channel to the kill
_ERROR_MAX = 4000


@dataclass(slots=True)
class Child:
    """One sandbox as the server knows it."""

    id: str
    pid: int  # of bubblewrap, the parent of process 1; 0 once reaped
    groups: list[str]
    errors: int  # memory file that holds what went wrong
    kill_at: float | None = None


@dataclass(slots=True)
class Spawner:
    control: socket.socket
    owner: str
    roots: dict[str, str]
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    owner_maps: OwnerMaps | None = field(default_factory=lambda: OwnerMaps() if may_become_others() else None)

    def serve(self, owner_fd: int, wake: int) -> None:
        """Until the owner hangs up or dies."""
        while True:
            waiting = any(child.kill_at is not None or child.pid == 0 for child in self.children.values())
            ready, _, _ = select.select([self.control, owner_fd, wake], [], [], 0.01 if waiting else None)
            if owner_fd in ready or (self.control in ready and not self.receive()):
                return
            if wake in ready:
                os.read(wake, 4096)
            self.reap()
            self.sweep()

    def receive(self) -> bool:
        """Handle one message. False when the owner has hung up."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, PACKET_MAX, 1, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return False
        if not data:
            return False
        message = json.loads(data)
        if message["op"] == "start":
            self.start(Plan(**message["plan"]), fds[0])
        elif (child := self.children.get(message["id"])) is not None:
            child.kill_at = time.monotonic() + GRACE_S
        return True

    def start(self, plan: Plan, channel: int) -> None:
        errors = os.memfd_create("errors", os.MFD_CLOEXEC)
        limits = Limits(memory_mib=plan.memory_mib, pids=plan.pids, cpus=plan.cpus, disk_mib=plan.disk_mib)
        groups: list[str] = []
        pid = 0
        try:
            groups = cgroups.create(self.roots, self.owner, plan.id, limits)
            if self.owner_maps and plan.layer:
                info = os.stat(plan.layer)
                self.owner_maps.get(info.st_uid, info.st_gid)  # made here once, not in each child
            pid = os.fork()
        except OSError as error:
            os.write(errors, str(error).encode())
        else:
            if pid == 0:
                run_child(plan, groups, channel, errors, self.owner_maps)
        os.close(channel)
        self.children[plan.id] = Child(plan.id, pid, groups, errors)

    def reap(self) -> None:
        """Collect dead children; orphans of killed sandboxes are among them."""
        by_pid = {child.pid: child for child in self.children.values()}
        while True:
            try:
                pid, _ = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            if pid in by_pid:
                by_pid[pid].pid = 0

    def sweep(self) -> None:
        """Kill what is past its grace; report the sandboxes whose last trace is gone."""
        now = time.monotonic()
        for child in list(self.children.values()):
            if child.pid and child.kill_at is not None and now >= child.kill_at:
                os.kill(child.pid, signal.SIGKILL)  # process 1 dies with it
                child.kill_at = None
            if child.pid == 0 and self.bury(child):
                del self.children[child.id]
                self.report(child)

    def bury(self, child: Child) -> bool:
        """Kill and remove what is left of a dead sandbox. False while something still dies."""
        for directory in child.groups:
            for pid in cgroups.members(directory):
                kill(pid)
            if not cgroups.remove(directory):
                return False
        return True

    def report(self, child: Child) -> None:
        error = os.pread(child.errors, _ERROR_MAX, 0).decode("utf-8", "replace").strip()
        os.close(child.errors)
        message = {"event": "exited", "id": child.id, "error": error}
        try:
            self.control.send(json.dumps(message).encode())
        except OSError:  # the owner is gone; the next turn of the loop ends the server
            return

    def end(self) -> None:
        """Kill every sandbox, then remove their groups, within a bounded time."""
        for child in self.children.values():
            if child.pid:
                kill(child.pid)
        deadline = time.monotonic() + 10.0
        while self.children and time.monotonic() < deadline:
            self.reap()
            self.sweep()
            time.sleep(0.002)
        for base in set(self.roots.values()):
            cgroups.remove(f"{base}/{self.owner}")


def may_become_others() -> bool:
    """Whether this is root, and of a machine rather than of a user namespace that lacks SANDBOX_UID."""
    maps = [line.split() for line in Path("/proc/self/uid_map").read_text().splitlines()]
    known = any(int(first) <= SANDBOX_UID < int(first) + int(count) for first, _, count in maps)
    return os.geteuid() == 0 and known


def kill(pid: int) -> None:
    """SIGKILL; already dead is as good."""
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def run_child(plan: Plan, groups: list[str], channel: int, errors: int, owner_maps: OwnerMaps | None) -> None:
    """The forked side of `start`: become the sandbox, or say why not and exit."""
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        become_sandbox(plan, groups, channel, errors, owner_maps)
    except BaseException as error:
        os.write(errors, str(error).encode())
    finally:
        os._exit(70)


def main(arguments: list[str]) -> None:
    owner, owner_pid = arguments
    owner_fd = os.pidfd_open(int(owner_pid))
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    syscalls.become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole terminal group; the owner decides
    wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    spawner = Spawner(control, owner, cgroups.find_roots())
    cgroups.open_owner(spawner.roots, owner)
    control.send(json.dumps({"event": "ready", "roots": spawner.roots}).encode())
    try:
        spawner.serve(owner_fd, wake)
    finally:
        spawner.end()


if __name__ == "__main__":
    main(sys.argv[1:])
