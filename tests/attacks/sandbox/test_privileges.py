"""No way up: capabilities, setuid files, namespaces, mounts, the clock, the machine itself."""

from __future__ import annotations

import os
import shutil
import struct
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

from hone.sandbox import Mount, Sandbox, SandboxSpec
from hone.sandbox.namespaces import cgroups
from tests.attacks.sandbox.attack_target import APART, NOBODY, AttackTarget, Outcomes, attack, program


def test_capabilities_cannot_be_gained(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
def gain():
    data = (ctypes.c_uint32 * 6)()
    libc.capget(header, data)
    wanted = (ctypes.c_uint32 * 6)(*[1 << 21 | 1 << 12] * 3, 0, 0, 0)  # administration, network
    if libc.capset(header, wanted) < 0:
        raise OSError(ctypes.get_errno(), "capset")
    return True
attempt("ask for them", in_child, gain)
attempt("become another", lambda: in_child(os.setresuid, 65534, 65534, 65534))
attempt("join a group", lambda: in_child(os.setgroups, [0, 42]))
attempt("give a file away", lambda: os.chown(os.memfd_create("file"), 65534, 65534) or True)
def counted(name):
    with open("/proc/self/status") as file:
        return any(line.startswith(name) and int(line.split()[1], 16) for line in file)
for name in ("CapPrm", "CapEff", "CapBnd"):
    attempt(name, counted, name)
"""
    )


def _elevating_files(folder: Path) -> None:
    """Copies of a program that become root, or gain rights, when anyone runs them."""
    source = shutil.which("cat")
    assert source is not None
    folder.mkdir()
    folder.chmod(0o755)
    for name in ("setuid", "capable"):
        shutil.copy(source, folder / name)
    (folder / "setuid").chmod(0o6755)
    (folder / "capable").chmod(0o755)
    # version 2, effective, permitted: administration, network, ownership
    rights = struct.pack("<5I", 0x02000001, 1 << 21 | 1 << 12 | 1, 0, 0, 0)
    os.setxattr(folder / "capable", "security.capability", rights)


def test_setuid_and_file_capabilities_have_no_effect(attacked: AttackTarget) -> None:
    folder = Path("/var/tmp") / f"hone-{uuid.uuid4().hex}"
    folder.parent.mkdir(exist_ok=True)
    _elevating_files(folder)
    code = """
import subprocess
folder = arguments[0]
def rights(program, field):
    out = subprocess.run([f"{folder}/{program}", "/proc/self/status"], capture_output=True, text=True)
    if out.returncode: raise OSError(1, out.stderr)
    value = next(line.split() for line in out.stdout.splitlines() if line.startswith(field))
    return value[2] != str(os.getuid()) if field == "Uid" else int(value[1], 16) > 0
attempt("a setuid file", rights, "setuid", "Uid")
attempt("a file with capabilities", rights, "capable", "CapEff")
"""
    try:
        spec = SandboxSpec(mounts=(Mount(source=folder, target="/mnt/elevating"),))
        command = [*NOBODY, "/usr/bin/python3", "-c", program(code), str(folder)]
        done = subprocess.run(command, capture_output=True, text=True)
        free = Outcomes.parse(done.stdout)
        assert set(free.through) == {"a setuid file", "a file with capabilities"}, done.stderr

        async def act(sandbox: Sandbox) -> None:
            assert set((await attack(sandbox, code, "/mnt/elevating")).refused) == free.names()
            made = "cp /mnt/elevating/setuid own && chmod 6755 own && ./own /proc/self/status | grep ^Uid"
            user = (await sandbox.exec(["id", "-u"])).text.strip()
            assert set((await sandbox.exec(made)).text.split()[1:]) == {user}
            for command in ("sudo -n id", "mount -t tmpfs none /mnt", "newgrp root", "chsh", "pkexec id"):
                done = await sandbox.exec(command, timeout_s=20)
                assert user == "0" or "uid=0" not in done.text

        attacked.run(act, spec)
    finally:
        shutil.rmtree(folder)


NAMESPACES = {
    "user": 0x10000000, "mount": 0x20000, "pid": 0x20000000, "net": 0x40000000, "ipc": 0x08000000,
    "uts": 0x04000000, "cgroup": 0x02000000, "time": 0x80,
}  # fmt: skip


def test_namespaces_cannot_be_created(attacked: AttackTarget) -> None:
    """A user namespace would hand out every capability over all that is made in it."""
    code = """
def clone(flag):
    pid = call("clone", flag | 17, 0, 0, 0, 0)
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return True
def clone3(flag):
    fields = (ctypes.c_uint64 * 11)(flag, 0, 0, 0, 17)
    pid = call("clone3", fields, ctypes.sizeof(fields))
    if pid == 0: os._exit(0)
    os.waitpid(pid, 0)
    return True
def with_mounts(flag):
    call("unshare", flag | 0x20000)
    call("mount", b"tmpfs", b"/mnt", b"tmpfs", 0, b"")
for kind, flag in zip(arguments[::2], map(int, arguments[1::2])):
    attempt(f"unshare {kind}", in_child, call, "unshare", flag)
    if kind != "time":
        attempt(f"clone {kind}", clone, flag)
    attempt(f"clone3 {kind}", clone3, flag)
    if kind == "user":
        attempt("unshare user with mounts", in_child, with_mounts, flag)
"""
    attacked.assert_denied(code, *(str(word) for pair in NAMESPACES.items() for word in pair))


def test_namespaces_cannot_be_joined(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
for name in ("net", "mnt", "uts", "ipc", "cgroup", "pid"):
    def join():
        call("setns", os.open(f"/proc/self/ns/{name}", os.O_RDONLY), 0)
    attempt(name, in_child, join)
attempt("all of a process", in_child, lambda: call("setns", os.pidfd_open(os.getpid()), 0x04000000))
"""
    )


def test_mounts_are_denied(attacked: AttackTarget, tmp_path: Path) -> None:
    attacked.assert_denied(
        """
point = (arguments[0] + "/point").encode()
os.makedirs(point + b"/old", exist_ok=True)
attempt("tmpfs", lambda: call("mount", b"none", point, b"tmpfs", 0, b"") or True)
attempt("proc", lambda: call("mount", b"none", point, b"proc", 0, b"") or True)
attempt("sysfs", lambda: call("mount", b"none", point, b"sysfs", 0, b"") or True)
attempt("bind", lambda: call("mount", b"/usr", point, b"", 4096, b"") or True)
attempt("writable again", lambda: call("mount", b"none", point, b"", 4096 | 32, b"") or True)
attempt("off", lambda: call("umount2", point, 2) or True)
attempt("fsopen", call, "fsopen", b"tmpfs", 0)
def tree():
    fd = call("open_tree", -100, b"/usr", 1)
    call("move_mount", fd, b"", -100, point, 4)
    return fd
attempt("a copied tree", tree)
attributes = (ctypes.c_uint64 * 4)(1)
attempt("attributes", lambda: call("mount_setattr", -100, point, 0, attributes, 32) or True)
attempt("chroot", in_child, call, "chroot", point)
def pivot():
    call("mount", b"none", point, b"tmpfs", 0, b"")
    os.mkdir(point + b"/old")
    call("pivot_root", point, point + b"/old")
attempt("pivot_root", in_child, pivot)
""",
        "/tmp",
        outside=(str(tmp_path),),
        wrapped=(*APART, "sh", "-c", f'mount -t tmpfs none {tmp_path} && exec "$@"', "sh"),
    )


def test_chroot_escape_is_denied(attacked: AttackTarget, secret: Path) -> None:
    """The oldest escape: a root below the working directory no longer stops `..`."""
    attacked.assert_denied(
        """
import tempfile
top, path = arguments
def leave():
    folder = tempfile.mkdtemp(dir=top)
    os.chroot(folder)
    for _ in range(64): os.chdir("..")
    os.chroot(".")
    os.stat(path)
attempt("second root", in_child, leave)
""",
        "/tmp",
        str(secret),
        outside=(str(secret.parent), str(secret)),
    )


def test_host_name_cannot_be_changed(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
attempt("host name", lambda: call("sethostname", b"attacked", 8) or True)
attempt("domain name", lambda: call("setdomainname", b"attacked", 8) or True)
attempt("by file", lambda: os.write(os.open("/proc/sys/kernel/hostname", os.O_WRONLY), b"attacked"))
""",
        wrapped=APART,
    )


def test_clock_cannot_be_set(attacked: AttackTarget) -> None:
    """The control sets it to what it shows."""
    attacked.assert_denied(
        """
import time
def now():
    time.clock_settime_ns(time.CLOCK_REALTIME, time.clock_gettime_ns(time.CLOCK_REALTIME))
    return True
attempt("time", now)
"""
    )


def test_reboot_is_denied(attacked: AttackTarget) -> None:
    """In a process namespace of its own, the control ends all of that."""
    code = 'past("reboot", call, "reboot", 0xfee1dead, 672274793, 0x01234567, 0)\n'
    shell = 'echo began; "$@"; echo survived'
    command = ["unshare", "--pid", "--fork", "sh", "-c", shell, "sh", sys.executable, "-c", program(code)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "began\n"

    async def act(sandbox: Sandbox) -> None:
        assert (await attack(sandbox, code)).refused == {"reboot": "EPERM"}

    attacked.run(act)


def test_administrator_calls_are_denied(attacked: AttackTarget) -> None:
    attacked.assert_denied(
        """
past("load a module", call, "init_module", b"x" * 10, 10, b"")
past("load a module's file", call, "finit_module", 0, b"", 0)
past("remove a module", call, "delete_module", b"none", 2048)
past("another kernel", call, "kexec_load", 0, 0, 0, 0)
past("swap", call, "swapon", b"/nonexistent", 0)
past("accounting", call, "acct", b"/nonexistent")
past("quota", call, "quotactl", 0x800002 << 8, b"/nonexistent", 0, 0)
past("messages of the kernel", call, "syslog", 3, ctypes.create_string_buffer(100), 100)
past("ports", call, "iopl", 3)
past("all file events", call, "fanotify_init", 0, 0)
"""
    )


def test_cgroups_are_hidden_and_read_only(attacked: AttackTarget) -> None:
    roots = cgroups.find_roots()
    if "pids" not in roots:
        pytest.skip("no control group can be made on this machine, so there is no control")
    group = Path(roots["pids"]) / f"attack-{uuid.uuid4().hex}"
    code = """
top, group = arguments
attempt("leave", lambda: os.mkdir(group) or os.write(os.open(group + "/cgroup.procs", os.O_WRONLY), b"0"))
attempt("raise a limit", lambda: os.write(os.open(group + "/pids.max", os.O_WRONLY), b"max"))
attempt("look around", os.listdir, top)
"""
    try:
        attacked.assert_denied(
            code, "/sys/fs/cgroup", "/sys/fs/cgroup/attack", outside=(roots["pids"], str(group))
        )
    finally:
        group.rmdir()
