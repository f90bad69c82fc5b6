"""Processes beside the sandbox are neither seen, read, traced nor signalled."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from hone.sandbox import Sandbox
from tests.attacks.sandbox.attack_target import AttackTarget, Outcomes, attack, control

HOLDER = """
import os, sys
held = os.open(sys.argv[2], os.O_RDWR)
os.unlink(sys.argv[2])
print("ready", flush=True)
sys.stdin.read()
"""


@dataclass(frozen=True, slots=True)
class Victim:
    process: subprocess.Popen[str]
    token: str

    @property
    def pid(self) -> int:
        return self.process.pid


@pytest.fixture
def victim(tmp_path: Path) -> Iterator[Victim]:
    """A process of the host that holds a deleted file and has a token in its arguments and variables."""
    token = uuid.uuid4().hex
    held = tmp_path / "held"
    held.write_text(token)
    command = [sys.executable, "-c", HOLDER, token, str(held)]
    with subprocess.Popen(
        command, env={"TOKEN": token}, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        yield Victim(process, token)
        process.kill()


def test_host_processes_are_hidden(attacked: AttackTarget, victim: Victim) -> None:
    attacked.assert_denied(
        """
token, pid = arguments
def scan(kind):
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) != os.getpid():
            try:
                if token.encode() in (read(f"/proc/{name}/{kind}", 1 << 16) or b""):
                    return name
            except OSError:
                continue
attempt("its directory", os.listdir, f"/proc/{pid}")
attempt("its arguments", scan, "cmdline")
attempt("its variables", scan, "environ")
attempt("its descriptor", os.pidfd_open, int(pid))
attempt("its session", os.getsid, int(pid))
""",
        victim.token,
        str(victim.pid),
    )


def test_kill_does_not_reach_host_processes(attacked: AttackTarget, victim: Victim) -> None:
    code = """
import signal
signal.signal(signal.SIGTERM, signal.SIG_IGN)
how, *pids = arguments
for pid in map(int, pids):
    attempt(f"kill {pid}", lambda: os.kill(pid, signal.SIGKILL) or True)
if how == "everything":
    for pid in range(2, 70000):
        if pid != os.getpid():
            try: os.kill(pid, signal.SIGKILL)
            except OSError: pass
"""
    with subprocess.Popen(["sleep", "1000"]) as bystander:
        free = control(code, "this one", str(bystander.pid))
        assert bystander.wait(60) == -9
        assert len(free.through) == 1

    async def act(sandbox: Sandbox) -> None:
        held = await attack(sandbox, code, "everything", str(victim.pid), str(os.getpid()))
        assert not held.through
        assert len(held.refused) == 2
        await sandbox.exec("kill -9 -1")
        await sandbox.exec("kill -STOP -1")

    attacked.run(act)
    assert victim.process.poll() is None


def test_init_process_cannot_be_killed_or_stopped(attacked: AttackTarget, victim: Victim) -> None:
    code = """
import signal
pid, timeout_s = int(arguments[0]), float(arguments[1])
def state():
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]
def hit(number):
    os.kill(pid, number)
    os.kill(pid, 0)
    if number == signal.SIGSTOP:
        os.sched_yield()
        deadline = __import__("time").monotonic() + timeout_s
        while __import__("time").monotonic() < deadline:
            if state() in "Tt":
                return True
attempt("stop", hit, signal.SIGSTOP)
for number in range(1, 65):
    try: os.kill(pid, number)
    except OSError: pass
def gone():
    deadline = __import__("time").monotonic() + timeout_s
    while __import__("time").monotonic() < deadline:
        if not os.path.exists(f"/proc/{pid}") or state() in "ZX":
            return True
attempt("kill", gone)
"""
    attacked.assert_denied(code, "1", "1", outside=(str(victim.pid), "30"))


def test_init_process_cannot_be_traced_or_read(attacked: AttackTarget, victim: Victim) -> None:
    """Not its memory, descriptors, variables, root or namespaces; nor its programme overwritten."""
    attacked.assert_denied(
        """
pid = int(arguments[0])
class Piece(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("size", ctypes.c_size_t)]
place = int(next(open("/proc/self/maps")).split("-")[0], 16)
def move(name, pid):
    buffer = ctypes.create_string_buffer(8)
    pieces = [ctypes.byref(Piece(where, 8)) for where in (ctypes.addressof(buffer), place)]
    return call(name, pid, pieces[0], 1, pieces[1], 1, 0)
past("read memory", move, "process_vm_readv", pid)
past("write memory", move, "process_vm_writev", pid)
for name in ("fd", "task/%d/fd" % pid):
    attempt(f"a descriptor in {name.split('/')[0]}", lambda: os.open(f"/proc/{pid}/{name}/0", os.O_RDWR))
    attempt(f"what is open in {name.split('/')[0]}", os.readlink, f"/proc/{pid}/{name}/0")
attempt("mapped files", os.listdir, f"/proc/{pid}/map_files")
for name in ("environ", "maps", "auxv", "root/etc/passwd", "cwd/."):
    attempt(name, lambda: os.open(f"/proc/{pid}/{name}", os.O_RDONLY))
attempt("stack", read, f"/proc/{pid}/stack")
attempt("mem", os.open, f"/proc/{pid}/mem", os.O_RDWR)
attempt("exe", os.readlink, f"/proc/{pid}/exe")
for name in ("net", "mnt", "pid", "user"):
    attempt("namespace " + name, os.open, f"/proc/{pid}/ns/{name}", os.O_RDONLY)
attempt("take a descriptor", lambda: call("pidfd_getfd", os.pidfd_open(pid), 0, 0) + 1)
attempt("trace", lambda: call("ptrace", 0x4206, pid, 0, 0) + 1)
""",
        "1",
        outside=(str(victim.pid),),
    )


def test_open_file_of_a_host_process_is_unreachable(attacked: AttackTarget, victim: Victim) -> None:
    attacked.assert_denied(
        """
import stat
token = arguments[0]
def search():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try: descriptors = os.listdir(f"/proc/{name}/fd")
        except OSError: continue
        for fd in descriptors:
            place = f"/proc/{name}/fd/{fd}"
            try:  # of a pipe, what is read would be missing to whom it was meant for
                if int(name) == os.getpid() or not stat.S_ISREG(os.stat(place).st_mode): continue
                if token.encode() in (read(place) or b""): return name, fd
            except OSError: continue
attempt("reopen", search)
def holds(process, number):
    fd = call("pidfd_getfd", process, number, 0)
    try: return os.pread(fd, 100, 0) == token.encode()
    finally: os.close(fd)  # a copy that is kept keeps a pipe, a lock or a port of another's
def take():
    for name in filter(str.isdigit, os.listdir("/proc")):
        if int(name) == os.getpid(): continue
        try: process = os.pidfd_open(int(name))
        except OSError: continue
        try:
            for number in range(8):
                try:
                    if holds(process, number): return name, number
                except OSError: continue
        finally: os.close(process)
attempt("copy", take)
""",
        victim.token,
    )


def test_two_sandboxes_share_nothing(attacked: AttackTarget) -> None:
    """Not by processes, files, abstract sockets, System V or POSIX shared memory, nor message queues."""
    token = uuid.uuid4().hex
    key = str(int(token[:7], 16) | 1)
    hold = """
import ctypes, socket, sys, time
libc = ctypes.CDLL(None)
libc.shmget(int(sys.argv[2]), 4096, 0o1666)
libc.mq_open(b"/hone-" + sys.argv[1].encode(), 0o102, 0o666, None)
s = socket.socket(socket.AF_UNIX); s.bind(chr(0) + sys.argv[1]); s.listen()
for folder in ("/tmp", "/dev/shm"):
    with open(f"{folder}/hone-{sys.argv[1]}", "w") as file: file.write(sys.argv[1])
print("ready", flush=True)
time.sleep(1000)
"""
    code = """
import socket
token, key = arguments
def connect():
    s = socket.socket(socket.AF_UNIX)
    s.connect(chr(0) + token)
    return True
attempt("abstract socket", connect)
attempt("its name in the list", lambda: token in open("/proc/net/unix").read())
attempt("System V memory", lambda: libc.shmget(int(key), 4096, 0) >= 0)
attempt("message queue", lambda: libc.mq_open(b"/hone-" + token.encode(), 0) >= 0)
attempt("/tmp", read, "/tmp/hone-" + token)
attempt("/dev/shm", read, "/dev/shm/hone-" + token)
def scan():
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            held = read(f"/proc/{name}/cmdline", 1 << 16) or b""  # of any bytes
            if int(name) != os.getpid() and token.encode() in held: return name
        except OSError: continue
attempt("process", scan)
"""
    with subprocess.Popen([sys.executable, "-c", hold, token, key], stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        free = control(code, token, key)
        other.kill()
    control(
        """
token, key = arguments
libc.shmctl(libc.shmget(int(key), 4096, 0), 0, None)
libc.mq_unlink(b"/hone-" + token.encode())
for folder in ("/tmp", "/dev/shm"):
    os.unlink(f"{folder}/hone-{token}")
""",
        token,
        key,
    )
    assert not free.refused

    async def act(sandbox: Sandbox) -> None:
        async with await attacked.provider.start(sandbox.spec) as neighbour:
            await neighbour.write("hold.py", hold.encode())
            started = await neighbour.exec(
                f"python3 hold.py {token} {key} > out & until grep -q ready out; do :; done"
            )
            assert started.exit_code == 0
            held = await attack(sandbox, code, token, key)
            assert not held.through
            assert held.names() == free.names()
            assert _reaches_itself(await attack(neighbour, code, token, key))

    attacked.run(act)


def _reaches_itself(outcomes: Outcomes) -> bool:
    """The neighbour did set its meeting places up, so the attacker would have found them."""
    return {"abstract socket", "System V memory", "/tmp", "/dev/shm", "process"} <= set(outcomes.through)


def test_scheduler_privileges_are_denied(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
attempt("realtime", lambda: os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(1)) or True)
attempt("priority", lambda: os.setpriority(os.PRIO_PROCESS, 0, -20) or True)
attempt("realtime disk", lambda: call("ioprio_set", 1, 0, 1 << 13) == 0)
"""
    )
