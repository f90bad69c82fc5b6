"""The spawn server: a small process that forks sandboxes, because forking a trainer of many GiB is slow.

`main([OWNER, OWNER_PID])` in a new interpreter, with a SOCK_SEQPACKET control socket as standard input. One
JSON message per packet:

    -> {"op": "start", "plan": {...}} with two descriptors: the sandbox's channel, and a socket that receives
       a descriptor of its upper layers
    -> {"op": "close", "id": ...}       a sandbox ends when its channel closes; this sets a deadline
    <- {"id": ..., "error": ...}        nothing of the sandbox is left

When its owner ends, for whatever reason, it kills all sandboxes and exits.
Invariant: no message ends it; a sandbox that it cannot start is reported with its error.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import select
import signal
import socket
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hone.sandbox import seccomp
from hone.sandbox.contract import Limits
from hone.sandbox.namespaces import cgroups, syscalls
from hone.sandbox.namespaces.host_user import SANDBOX_UIDS, HostUser, can_change_user
from hone.sandbox.namespaces.plan import PACKET_MAX, Plan
from hone.sandbox.namespaces.rootfs import become_sandbox, copy_where_needed, masks
from hone.utils.processes import send_signal

GRACE_S = 2.0  # from a closed channel to the kill
_ERROR_MAX = 4000  # bytes


class Users:
    """The host users of an owner's sandboxes, one for each while there are enough.

    There are none if this process cannot change user.
    """

    def __init__(self) -> None:
        self._idle = [HostUser(uid) for uid in SANDBOX_UIDS] if can_change_user() else []
        random.shuffle(self._idle)  # so that several owners take different ones
        self._used: Counter[HostUser] = Counter()

    def take(self) -> HostUser | None:
        """Return a user that no sandbox has, else the one that the fewest have."""
        if self._idle:
            user = self._idle.pop()
        elif self._used:
            user = min(self._used, key=lambda user: self._used[user])
        else:
            return None
        self._used[user] += 1
        return user

    def release(self, user: HostUser | None) -> None:
        """Let the next sandbox have this user, whose maps exist already."""
        if user is not None:
            self._used[user] -= 1
            if not self._used[user]:
                del self._used[user]
                self._idle.append(user)


@dataclass(slots=True)
class Child:
    """The server's record of one sandbox."""

    id: str
    pid: int  # of bubblewrap, the parent of process 1; 0 once reaped
    limits: Limits
    groups: list[str]  # cgroups with these limits
    errors: int  # memory file with the error message of its start
    user: HostUser | None
    kill_at: float | None = None


@dataclass(slots=True)
class Spawner:
    control: socket.socket
    groups: cgroups.Groups
    children: dict[str, Child] = field(default_factory=dict[str, Child])
    users: Users = field(default_factory=Users)

    def serve(self, owner_fd: int, wake: int) -> None:
        """Serve until the owner closes the control socket or dies."""
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
        """Handle one message; return False when the owner has closed the control socket."""
        try:
            data, fds, _, _ = socket.recv_fds(self.control, PACKET_MAX, 2, socket.MSG_CMSG_CLOEXEC)
        except ConnectionError:
            return False
        if not data:
            return False
        try:
            self.handle(json.loads(data), fds)
        except (ValueError, TypeError, LookupError) as error:  # cut, or not of this protocol
            print(f"a message was refused: {error!r}", file=sys.stderr)
        finally:
            for fd in fds:
                os.close(fd)
        return True

    def handle(self, message: dict[str, Any], fds: list[int]) -> None:
        if message["op"] == "start":
            plan = Plan.from_json(message["plan"])
            channel, upper_to = fds
            try:
                self.children[plan.id] = self.start(plan, channel, upper_to)
            except Exception as error:  # whatever it is, the other sandboxes go on
                self.report(plan.id, str(error))
        elif (child := self.children.get(message["id"])) is not None:
            child.kill_at = time.monotonic() + GRACE_S
        else:
            self.report(message["id"], "its plan did not arrive")

    def start(self, plan: Plan, channel: int, upper_to: int) -> Child:
        seccomp.program(fixed_cores=plan.cores > 0)  # cached here, not in each child
        masks()
        with contextlib.ExitStack() as on_failure:
            errors = os.memfd_create("errors", os.MFD_CLOEXEC)
            on_failure.callback(os.close, errors)
            groups = self.groups.take(plan.limits)
            on_failure.callback(self.groups.release, plan.limits, groups)
            user = self.users.take()
            on_failure.callback(self.users.release, user)
            plan = copy_where_needed(plan, user)
            if user is not None:
                user.prepare(plan)
            pid = os.fork()
            if pid == 0:
                become_sandbox(plan, groups, channel, errors, user, upper_to)
            on_failure.pop_all()
            return Child(plan.id, pid, plan.limits, groups, errors, user)

    def reap(self) -> None:
        """Collect dead children, including orphans of killed sandboxes."""
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
        """Kill sandboxes past their deadline; report those of which nothing is left."""
        now = time.monotonic()
        for child in list(self.children.values()):
            if child.pid and child.kill_at is not None and now >= child.kill_at:
                os.kill(child.pid, signal.SIGKILL)  # process 1 dies with it
                child.kill_at = None
            if child.pid == 0 and self.clean_up(child):
                del self.children[child.id]
                error = os.pread(child.errors, _ERROR_MAX, 0).decode("utf-8", "replace").strip()
                os.close(child.errors)
                self.report(child.id, error)

    def clean_up(self, child: Child) -> bool:
        """Kill the rest of a dead sandbox and release its groups; return False while a process is left."""
        left = [pid for directory in child.groups for pid in cgroups.members(directory)]
        send_signal(set(left), signal.SIGKILL)
        if not left:
            self.groups.release(child.limits, child.groups)
            self.users.release(child.user)
        return not left

    def report(self, sandbox: str, error: str) -> None:
        """Tell the owner that nothing is left of a sandbox."""
        try:
            self.control.send(json.dumps({"id": sandbox, "error": error[:_ERROR_MAX]}).encode())
        except OSError:  # the owner is gone; `serve` returns at its next turn
            return

    def end(self) -> None:
        """Kill every sandbox, then remove their groups, within a bounded time."""
        pids = {child.pid for child in self.children.values()}
        send_signal(pids - {0}, signal.SIGKILL)
        deadline = time.monotonic() + 10.0
        while self.children and time.monotonic() < deadline:
            self.reap()
            self.sweep()
            time.sleep(0.002)
        self.groups.close()


def main(arguments: list[str]) -> None:
    owner, owner_pid = arguments
    owner_fd = os.pidfd_open(int(owner_pid))
    control = socket.socket(fileno=os.dup(0))
    null = os.open("/dev/null", os.O_RDWR)
    os.dup2(null, 0)
    syscalls.become_subreaper()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C signals the whole terminal group; the owner decides
    wake, wake_write = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
    roots = cgroups.find_roots()
    cgroups.open_owner(roots, owner)
    spawner = Spawner(control, cgroups.Groups(roots, owner))
    control.send(json.dumps({"roots": roots}).encode())
    try:
        spawner.serve(owner_fd, wake)
    finally:
        spawner.end()


if __name__ == "__main__":
    main(sys.argv[1:])
