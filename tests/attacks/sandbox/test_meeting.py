"""Two sandboxes over the same image, layer and mounts meet at no inode: locks, leases, watches, pipes."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hone.sandbox import Mount, Sandbox, SandboxSpec
from tests.attacks.sandbox.attack_target import AttackTarget, Outcomes, program

# What both may open: every mount, and some files in each.
_PLACES = """
import fcntl, select, signal, stat, struct
def places():
    found = arguments[1:]
    if not found:
        points = [line.split()[4] for line in open("/proc/self/mountinfo")]
        for folder in ["/usr/bin", "/etc", *points]:
            found.append(folder)
            if os.path.isdir(folder):
                names = sorted(name for name in os.listdir(folder) if not name.isdigit())  # processes end
                found += [os.path.join(folder, name) for name in names[:4]]
    kept = []
    for path in found:
        try: kind = os.stat(path).st_mode
        except OSError: continue
        if stat.S_ISREG(kind) or stat.S_ISDIR(kind) or path in ("/dev/null", "/dev/zero", "/dev/full"):
            kept.append(path)
    return kept
def opened(path): return os.open(path, os.O_RDONLY | os.O_NONBLOCK)
"""
# {way: (what the first does before it says "ready", what the second does)}
WAYS = {
    "flock": (
        """
held = []
for path in places():
    held.append(opened(path))
    try: fcntl.flock(held[-1], fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: continue  # the same file, at another path of this sandbox
""",
        """
for path in places():
    fd = opened(path)
    try: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError: tell(path, True)
    else: tell(path, None)
    os.close(fd)
""",
    ),
    "record lock": (
        """
held = []
for path in places():
    held.append(opened(path))
    try: fcntl.lockf(held[-1], fcntl.LOCK_SH | fcntl.LOCK_NB)
    except OSError: continue
""",
        """
for path in places():
    asked = struct.pack("hhqqi4x", fcntl.F_WRLCK, 0, 0, 0, 0)
    try: kind = struct.unpack("hhqqi4x", fcntl.fcntl(opened(path), fcntl.F_GETLK, asked))[0]
    except OSError: kind = fcntl.F_UNLCK
    tell(path, kind != fcntl.F_UNLCK)
""",
    ),
    "lease": (
        """
held = [opened(path) for path in places()]
""",
        """
for path in places():
    if stat.S_ISREG(os.stat(path).st_mode):
        # it is given to the only opener, and to an owner
        try: fcntl.fcntl(opened(path), fcntl.F_SETLEASE, fcntl.F_WRLCK)
        except BlockingIOError: tell(path, True)
        except OSError: tell(path, None)
        else: tell(path, None)
""",
    ),
}


def _shared(tmp_path: Path) -> SandboxSpec:
    """Return the spec of a workspace, a mounted directory, and a mounted file."""
    tmp_path.chmod(0o755)
    for name in ("layer", "shown"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "file").write_text("text\n")
    (tmp_path / "alone").write_text("text\n")
    mounts = (
        Mount(source=tmp_path / "shown", target="/mnt/shown"),
        Mount(source=tmp_path / "alone", target="/mnt/alone"),
    )
    return SandboxSpec(layer=tmp_path / "layer", mounts=mounts)


async def _begin(sandbox: Sandbox, code: str) -> None:
    """Start a program that stays, and return when it is ready; its output is in /tmp/out."""
    await sandbox.write("/tmp/first.py", program(code).encode())
    run = (
        "python3 /tmp/first.py x > /tmp/out 2>&1 & until test -s /tmp/out; do sleep 0.01; done; cat /tmp/out"
    )
    result = await sandbox.exec(run)
    assert result.text == "ready\n", result


@pytest.mark.parametrize("way", WAYS)
def test_locks_join_no_sandboxes(attacked: AttackTarget, way: str, tmp_path: Path) -> None:
    """The control: two processes of this machine, one of which finds what the other holds."""
    first, second = WAYS[way]
    first = f"{_PLACES}{first}\nprint('ready', flush=True)\nsignal.pause()"
    spec = _shared(tmp_path)
    command = [sys.executable, "-c", program(first), "x", str(tmp_path / "alone")]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == b"ready\n"
        command[2] = program(_PLACES + second)
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        holder.kill()
    assert Outcomes.parse(done.stdout).through

    async def act(sandbox: Sandbox) -> None:
        await _begin(sandbox, first)
        async with await attacked.provider.start(attacked.with_image(spec)) as other:
            result = await other.exec(["python3", "-c", program(_PLACES + second), "x"])
            assert result.exit_code == 0, result
            found = Outcomes.parse(result.text)
        assert not found.through
        assert {"/mnt/alone", "/mnt/shown/file", "/testbed/file"} <= found.names()

    attacked.run(act, spec)


_WATCH = """
watch = libc.inotify_init1(os.O_NONBLOCK)
paths = {libc.inotify_add_watch(watch, os.fsencode(path), 0xFFF): path for path in places()}
print("ready", flush=True)
while not os.path.exists("/tmp/end"): select.select([], [], [], 0.01)
try: events = os.read(watch, 1 << 16)
except BlockingIOError: events = b""
while events:
    number, mask, _, size = struct.unpack_from("iIII", events)
    print(paths[number], hex(mask), events[16:16 + size], flush=True)
    events = events[16 + size:]
print("over", flush=True)
"""
_TOUCH = """
for path in places():
    fd = opened(path)
    os.listdir(fd) if os.path.isdir(path) else os.read(fd, 10)
    os.close(fd)
"""


def test_watches_see_no_other_sandbox(attacked: AttackTarget, tmp_path: Path) -> None:
    """The honest control: a sandbox sees what its own processes open."""
    spec = _shared(tmp_path)

    async def seen(sandbox: Sandbox, toucher: Sandbox) -> str:
        await sandbox.exec("rm -f /tmp/end /tmp/out")
        await _begin(sandbox, _PLACES + _WATCH)
        assert (await toucher.exec(["python3", "-c", program(_PLACES + _TOUCH), "x", *look])).exit_code == 0
        run = "touch /tmp/end; until grep -q over /tmp/out; do sleep 0.01; done; cat /tmp/out"
        return (await sandbox.exec(run, timeout_s=20)).text

    look = ["/mnt/shown", "/mnt/shown/file", "/mnt/alone", "/testbed/file", "/dev/null", "/etc/hosts",
            "/usr/bin/env", "/opt/hone/init/modules", "/sys/devices/system/cpu/online"]  # fmt: skip

    async def act(sandbox: Sandbox) -> None:
        async with await attacked.provider.start(attacked.with_image(spec)) as other:
            touched = [
                path for path in (await seen(sandbox, other)).split("\n") if path.startswith(tuple(look))
            ]
        assert touched == []
        assert "/mnt/alone 0x20" in await seen(sandbox, sandbox)

    attacked.run(act, spec)


def test_named_pipes_of_a_mount_join_no_sandboxes(attacked: AttackTarget, tmp_path: Path) -> None:
    spec = _shared(tmp_path)
    os.mkfifo(tmp_path / "shown" / "pipe")
    (tmp_path / "shown" / "pipe").chmod(0o666)
    reader = """
import signal
fd = os.open("/mnt/shown/pipe", os.O_RDONLY | os.O_NONBLOCK)
print("ready", flush=True)
signal.pause()
"""

    async def act(sandbox: Sandbox) -> None:
        await _begin(sandbox, reader)
        write = 'import os; os.write(os.open("/mnt/shown/pipe", os.O_WRONLY | os.O_NONBLOCK), b"text")'
        async with await attacked.provider.start(attacked.with_image(spec)) as other:
            result = await other.exec(["python3", "-c", write])
            assert b"No such device or address" in result.stderr, result
        assert (await sandbox.exec(["python3", "-c", write])).exit_code == 0  # the honest control

    attacked.run(act, spec)
