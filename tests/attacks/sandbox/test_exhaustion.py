"""Bombs: a sandbox takes what its limits give, whatever it is taken as; its neighbours do not notice.

The controls take the same amounts on the host, which are small: about twice what the sandboxes may have.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from hone.sandbox import Limits, Sandbox, SandboxSpec
from tests.attacks.sandbox.attack_target import (
    NOBODY,
    AttackTarget,
    Outcomes,
    attack,
    control,
    program,
    watched,
)

SMALL = Limits(memory_mib=96, pids=24, disk_mib=8)
GOAL_MIB = 256

MEMORY = {
    "one process": """
held = [bytearray(os.urandom(1 << 20)) * 8 for _ in range(goal // 8)]
""",
    "many processes": """
children = []
for _ in range(8):
    ready, told = os.pipe()
    pid = os.fork()
    if pid == 0:
        held = bytearray(b"x") * (goal // 8 << 20)
        os.write(told, b"x")
        signal.pause()
    os.close(told)
    children.append((pid, ready))
full = all(os.read(ready, 1) for _, ready in children)
for pid, _ in children: os.kill(pid, 9)
if not full: raise MemoryError
""",
    "memory files": """
for _ in range(goal // 8):
    fd = os.memfd_create("held")
    for _ in range(8): os.write(fd, bytes(1 << 20))
""",
    "System V segments": """
pieces = []
for _ in range(goal // 8):
    piece = libc.shmget(0, 8 << 20, 0o1600)
    if piece < 0: raise MemoryError
    pieces.append(piece)
    libc.shmat.restype = ctypes.c_void_p
    place = libc.shmat(piece, None, 0)
    libc.shmctl(piece, 0, None)
    ctypes.memset(ctypes.c_void_p(place), 1, 8 << 20)
""",
    "pipes": """
import fcntl
for _ in range(goal):
    for end in os.pipe(): os.set_blocking(end, False)
    fcntl.fcntl(end, 1031, 1 << 20)
    while True:
        try: os.write(end, bytes(1 << 16))
        except BlockingIOError: break
""",
    "sockets": """
import resource, socket
held, total = [], 0
while total < goal << 20:
    held.append(socket.socketpair())
    ours = held[-1][0]
    ours.setblocking(False)
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    while True:
        try: total += ours.send(bytes(1 << 15))
        except BlockingIOError: break
""",
    "locked memory": """
import mmap
held = mmap.mmap(-1, goal << 20, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | mmap.MAP_POPULATE)
""",
}


@pytest.mark.parametrize("kind", MEMORY)
def test_memory_is_limited(attacked: AttackTarget, kind: str) -> None:
    code = f"""
import resource, signal
goal = {GOAL_MIB}
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
try:
    {MEMORY[kind].strip().replace(chr(10), chr(10) + "    ")}
except (OSError, MemoryError) as error: tell("all of it", None, type(error).__name__)
else: tell("all of it", True)
"""
    attacked.assert_contained(code, limits=SMALL)


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/testbed", "/usr/local/lib", "/var/tmp"])
def test_disk_is_limited(attacked: AttackTarget, folder: str, tmp_path: Path) -> None:
    code = """
os.chdir(arguments[0])
def fill():
    with open("fill", "wb", 0) as file:
        for _ in range(64):
            if file.write(bytes(1 << 20)) < 1 << 20: return
    return True
attempt("64 MiB", fill)
try: os.unlink("fill")
except OSError: pass
"""
    attacked.assert_contained(code, folder, limits=SMALL, outside=(str(tmp_path),))


@pytest.mark.parametrize("folder", ["/tmp", "/dev/shm", "/testbed"])
def test_inodes_are_limited(attacked: AttackTarget, folder: str, tmp_path: Path) -> None:
    code = """
os.chdir(arguments[0])
name = "x" * 250
def fill():
    for number in range(5000): os.mkdir(f"{name}{number}")
    return True
attempt("5,000 directories", fill)
"""
    attacked.assert_contained(code, folder, limits=SMALL, outside=(str(tmp_path),))


def test_sparse_files_and_deep_trees_are_harmless(attacked: AttackTarget) -> None:
    """A size is no weight; and what is deeper than any path is removed all the same."""

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("truncate -s 1T huge; for i in $(seq 100); do truncate -s 1T huge$i; done")
        code = """
for _ in range(3000):
    os.mkdir("d" * 200)
    os.chdir("d" * 200)
tell("deep", True)
"""
        assert (await attack(sandbox, code)).through

    attacked.run(act, SandboxSpec(limits=Limits(disk_mib=64)))


PROCESSES = {
    "processes": """
for _ in range(100):
    if os.fork() == 0:
        signal.pause()
""",
    "a tree that grows": """
while counted() < 100:
    os.fork()
    time.sleep(0.01)
""",
    "threads": """
gate = threading.Event()
threads = [threading.Thread(target=gate.wait, daemon=True) for _ in range(100)]
try:
    for thread in threads: thread.start()
finally:
    gate.set()
""",
    "the dead": """
for _ in range(100):
    if os.fork() == 0:
        os._exit(0)
""",
}


@pytest.mark.parametrize("kind", PROCESSES)
def test_processes_are_limited(attacked: AttackTarget, kind: str) -> None:
    """The control is bounded: a hundred, in a session that is killed at once."""
    code = f"""
import signal, threading, time
def counted():
    group = os.getpgrp()
    found = 0
    for name in filter(str.isdigit, os.listdir("/proc")):
        try: found += os.getpgid(int(name)) == group
        except OSError: continue
    return found
os.setpgrp() if os.getpid() != os.getpgrp() else None
first = os.getpid()
try:
    {PROCESSES[kind].strip().replace(chr(10), chr(10) + "    ")}
except (OSError, RuntimeError) as error: tell("a hundred", None, type(error).__name__)
else: tell("a hundred", True)
if {kind!r} in ("processes", "a tree that grows"): os.killpg(os.getpgrp(), 9)
"""
    free = _killed_control(code)
    assert free.through

    async def act(sandbox: Sandbox) -> None:
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            result = await sandbox.exec(["python3", "-c", program(code)], timeout_s=60)
        assert not Outcomes.parse(result.text).through

    attacked.run(act, SandboxSpec(limits=SMALL))


def _killed_control(code: str) -> Outcomes:
    """The control, of which nothing lives on; it may end by its own signal."""
    wrapped = ("unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", '"$@"; true', "sh")
    return control(code, wrapped=wrapped)


@pytest.mark.full
def test_fork_bomb_ends_with_its_command(attacked: AttackTarget) -> None:
    """The classic, with nothing to stop it but the sandbox: 24 processes that never wait."""

    async def act(sandbox: Sandbox) -> None:
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            for bomb in ("b() { b | b & }; b; sleep 1000", "while :; do (while :; do :; done) & done"):
                assert (await sandbox.exec(bomb, timeout_s=1)).timed_out

    attacked.run(act, SandboxSpec(limits=SMALL))


def test_open_files_are_limited_per_process(attacked: AttackTarget) -> None:
    code = """
import resource, signal
hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
for _ in range(8):
    if os.fork() == 0: break
held = 0
try:
    while held < 100_000: held += 1 + 0 * os.open("/dev/null", os.O_RDONLY)
except OSError: pass
print(held, flush=True)
signal.pause()
"""

    async def act(sandbox: Sandbox) -> None:
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            await sandbox.exec(["python3", "-c", program(code)], timeout_s=2)

    attacked.run(act, SandboxSpec(limits=SMALL), survives=False)


def test_per_user_kernel_limits_are_not_shared(attacked: AttackTarget) -> None:
    code = """
import signal
def watchers(most):
    for _ in range(most):
        if libc.inotify_init1(0) < 0: return True
if arguments[0] == "take":
    watchers(10_000)
    print("taken", flush=True)
    signal.pause()
attempt("watchers of files", watchers, 1)
"""
    taker = f"""
import subprocess, sys
command = [sys.executable, "-c", {program(code)!r}]
other = subprocess.Popen([*command, "take"], stdout=subprocess.PIPE)
other.stdout.readline()
subprocess.run([*command, "look"])
other.kill()
"""
    done = subprocess.run(
        [*NOBODY, "/usr/bin/python3", "-c", taker], capture_output=True, text=True, timeout=60
    )
    assert Outcomes.parse(done.stdout).through, done

    async def act(sandbox: Sandbox) -> None:
        await sandbox.write("/tmp/take.py", program(code).encode())
        taken = "python3 /tmp/take.py take > /tmp/out & until grep -q taken /tmp/out; do sleep 0.01; done"
        assert (await sandbox.exec(taken)).exit_code == 0
        async with await attacked.provider.start(attacked.with_image(SandboxSpec())) as neighbour:
            assert not (await attack(neighbour, code, "look")).through

    attacked.run(act)
