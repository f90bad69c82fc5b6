"""Attempts to get out of a sandbox, to reach its supervisor, or to outlive it. Each must fail, and say so."""

from __future__ import annotations

import asyncio
import os
import socket
import subprocess
import uuid
from collections.abc import Callable, Coroutine, Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox import Limits, Provider, Sandbox, SandboxError, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox

Attack = Callable[[Sandbox], Coroutine[Any, Any, None]]

_SYSCALL = """
import ctypes, errno, os, sys
libc = ctypes.CDLL(None, use_errno=True)
def tell(name, result):
    print(name, "OK" if result >= 0 else errno.errorcode[ctypes.get_errno()])
"""


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="module")
def provider(runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Provider]:
    base = tmp_path_factory.mktemp("hone")
    provider = make_provider(SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache"))
    runner.run(provider.__aenter__())
    yield provider
    runner.run(provider.__aexit__(None, None, None))


@pytest.fixture
def attempt(runner: asyncio.Runner, provider: Provider) -> Callable[..., None]:
    """Run an attack in a sandbox; the sandbox must still serve afterwards."""

    def run(attack: Attack, spec: SandboxSpec | None = None) -> None:
        async def inside() -> None:
            async with await provider.start(spec or SandboxSpec()) as sandbox:
                await attack(sandbox)
                assert (await sandbox.exec(["/bin/echo", "alive"])).text == "alive\n"

        runner.run(inside())

    return run


async def _python(sandbox: Sandbox, code: str, *arguments: str) -> str:
    result = await sandbox.exec(["python3", "-c", _SYSCALL + code, *arguments], merge_stderr=True)
    assert result.exit_code == 0, result
    return result.text


def test_host_files_cannot_be_read_by_any_name(attempt: Callable[..., None], tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    token = uuid.uuid4().hex
    secret.write_text(token)
    names = [str(secret), f"/proc/1/root{secret}", f"/proc/self/root/../../..{secret}", f"/oldroot{secret}"]

    async def attack(sandbox: Sandbox) -> None:
        for name in names:
            assert (await sandbox.exec(["cat", name])).exit_code != 0, name
        found = await sandbox.exec(
            f"grep -rls --exclude-dir=hone {token} /tmp /etc /opt /run /var /home /root /mnt /srv /dev/shm"
        )
        assert found.text == ""

    attempt(attack)


def test_devices_cannot_be_opened_or_made(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        devices = (await sandbox.exec("ls /dev")).text.split()
        assert not set(devices) & {"mem", "kmem", "kvm", "fuse", "loop0", "sda", "vda", "nvme0", "kmsg"}
        assert (await sandbox.exec("mknod /tmp/d b 8 0")).exit_code != 0
        assert (await sandbox.exec("echo > /dev/new")).exit_code != 0

    attempt(attack)


def test_mounting_and_new_namespaces_are_refused(attempt: Callable[..., None]) -> None:
    code = """
tell("mount", libc.mount(b"tmpfs", b"/mnt", b"tmpfs", 0, b""))
tell("umount", libc.umount2(b"/usr", 2))
tell("remount", libc.mount(b"none", b"/opt/hone/python", b"", 32 | 4096, b""))
tell("chroot", libc.chroot(b"/tmp"))
tell("sethostname", libc.sethostname(b"x", 1))
for name, flag in (("user", 0x10000000), ("mount", 0x20000), ("pid", 0x20000000), ("net", 0x40000000)):
    tell("unshare " + name, libc.unshare(flag))
tell("clone3-like user+mount", libc.unshare(0x10020000))
"""

    async def attack(sandbox: Sandbox) -> None:
        for line in (await _python(sandbox, code)).splitlines():
            assert line.split()[-1] in ("EPERM", "ENOSPC", "EINVAL"), line
        assert "ENOSPC" in (await _python(sandbox, 'tell("user", libc.unshare(0x10000000))'))

    attempt(attack)


def test_setuid_programs_give_no_rights(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        await sandbox.exec("cp $(command -v id) /tmp/id && chmod 6755 /tmp/id")
        assert (await sandbox.exec(["/tmp/id", "-u"])).text == (await sandbox.exec(["id", "-u"])).text
        for program in ("su -c id", "mount -t tmpfs none /mnt", "sudo -n id", "newgrp root"):
            result = await sandbox.exec(program, stdin=b"")
            assert "uid=0" not in result.text
            assert result.exit_code != 0 or program == "newgrp root", program

    attempt(attack)


def test_processes_outside_cannot_be_seen_or_signalled(attempt: Callable[..., None]) -> None:
    with subprocess.Popen(["sleep", "1000"]) as victim:

        async def attack(sandbox: Sandbox) -> None:
            for pid in (victim.pid, os.getpid()):
                assert (await sandbox.exec(["test", "-e", f"/proc/{pid}"])).exit_code == 1
            await sandbox.exec(
                "for p in $(seq 2 100000); do [ $p = $$ ] || kill -9 $p; done 2>/dev/null; true"
            )
            await sandbox.exec("kill -9 -1")

        attempt(attack)
        assert victim.poll() is None
        victim.kill()


def test_the_supervisor_cannot_be_killed_or_stopped(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        await sandbox.exec("for s in $(seq 1 64); do kill -$s 1; done 2>/dev/null; true")

    attempt(attack)


def test_the_supervisors_memory_and_descriptors_are_out_of_reach(attempt: Callable[..., None]) -> None:
    code = """
pidfd = os.pidfd_open(1)
tell("ptrace", libc.ptrace(16, 1, 0, 0))
tell("seize", libc.ptrace(0x4206, 1, 0, 0))
for n in range(32):
    result = libc.syscall(438, pidfd, n, 0)   # pidfd_getfd
    if n in (0, 3, 4) or result >= 0:
        tell("pidfd_getfd", result)
for path in ("/proc/1/mem", "/proc/1/fd", "/proc/1/environ", "/proc/1/maps", "/proc/1/task/1/fd"):
    try:
        os.listdir(path) if path.endswith("fd") else open(path, "rb").read(1)
        print(path, "OK")
    except OSError as error:
        print(path, errno.errorcode[error.errno])
buffer = ctypes.create_string_buffer(8)
class iovec(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("len", ctypes.c_size_t)]
local, remote = iovec(ctypes.addressof(buffer), 8), iovec(0x400000, 8)
tell("process_vm_readv", libc.process_vm_readv(1, ctypes.byref(local), 1, ctypes.byref(remote), 1, 0))
"""

    async def attack(sandbox: Sandbox) -> None:
        for line in (await _python(sandbox, code)).splitlines():
            assert line.split()[-1] in ("EPERM", "EACCES"), line

    attempt(attack)


def test_a_command_inherits_no_descriptor_but_its_three(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        listed = await sandbox.exec(
            ["python3", "-c", "import os; print(sorted(map(int, os.listdir('/proc/self/fd'))))"]
        )
        assert listed.text == "[0, 1, 2, 3]\n"  # 3 is the listing itself

    attempt(attack)


def test_the_reply_of_a_command_cannot_be_forged_by_output(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        forged = bytes([0, 0, 0, 37, 21, 0, 0, 0, 1]) + bytes(37)
        result = await sandbox.exec("cat; cat /proc/self/fd/0 >&2; exit 7", stdin=forged * 100)
        assert result.exit_code == 7
        assert result.stdout == forged * 100

    attempt(attack)


def test_kernel_settings_cannot_be_written(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        for path in (
            "/proc/sys/kernel/core_pattern",
            "/proc/sys/kernel/hostname",
            "/proc/sys/vm/drop_caches",
            "/proc/sys/user/max_user_namespaces",
            "/proc/sysrq-trigger",
            "/proc/1/oom_score_adj",
            "/proc/self/uid_map",
        ):
            assert (await sandbox.exec(f"echo 1 > {path}")).exit_code != 0, path
        assert (await sandbox.exec("ls /sys /sys/fs/cgroup")).exit_code != 0

    attempt(attack)


def test_a_layer_is_never_written_through(attempt: Callable[..., None], tmp_path: Path) -> None:
    layer = tmp_path / "layer"
    (layer / "sub").mkdir(parents=True)
    (layer / "file").write_text("original")
    (layer / "file").chmod(0o666)
    (tmp_path / "beside").write_text("beside")
    (layer / "absolute").symlink_to(tmp_path / "beside")
    (layer / "relative").symlink_to("../beside")
    before = sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*"))

    async def attack(sandbox: Sandbox) -> None:
        await sandbox.exec("echo x > file; echo x > absolute; echo x > relative; ln file hard; echo y > hard")
        await sandbox.exec(
            "chmod 777 . sub; touch -d 2001-01-01 file sub; mv file sub/; rm -rf sub; truncate -s 9 ."
        )
        await sandbox.exec("exec 3<>file; echo z >&3; setfattr -n user.overlay.opaque -v y .")

    attempt(attack, SandboxSpec(layer=layer))
    assert (layer / "file").read_text() == "original"
    assert (tmp_path / "beside").read_text() == "beside"
    assert sorted((path.name, path.lstat().st_mtime_ns) for path in tmp_path.rglob("*")) == before


def test_a_download_is_never_led_out_of_its_target(attempt: Callable[..., None], tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")

    async def attack(sandbox: Sandbox) -> None:
        await sandbox.exec(
            f"mkdir -p a/b; ln -s {tmp_path} a/b/dir; mkdir c; ln -s {victim} c/victim; mkfifo d"
        )
        for number, source in enumerate(("a", "c", "d", "/proc/self/root", "/dev/zero", "/dev/stdin")):
            with pytest.raises((SandboxError, OSError)):
                await sandbox.download(source, tmp_path / f"out{number}")
        await sandbox.exec("mkdir e; echo evil > e/x; ln -s x e/y")
        (tmp_path / "planted").symlink_to(victim)
        await sandbox.download("e/x", tmp_path / "planted")
        with pytest.raises(FileExistsError):
            await sandbox.download("e", tmp_path)

    attempt(attack)
    assert victim.read_text() == "untouched"
    assert (tmp_path / "planted").read_text() == "evil\n"


def test_a_sparse_file_does_not_fill_the_host(attempt: Callable[..., None], tmp_path: Path) -> None:
    async def attack(sandbox: Sandbox) -> None:
        await sandbox.exec("truncate -s 4T huge")
        with pytest.raises((SandboxError, OSError)):
            await sandbox.read("huge")

    attempt(attack)


def test_sockets_of_the_host_are_out_of_reach(attempt: Callable[..., None], tmp_path: Path) -> None:
    name = f"hone-{uuid.uuid4().hex}"
    code = """
import socket
for address in ("\\0" + sys.argv[1], sys.argv[2]):
    s = socket.socket(socket.AF_UNIX)
    try: s.connect(address); print("reached")
    except OSError as error: print(errno.errorcode[error.errno])
s = socket.socket(); s.settimeout(3)
try: s.connect(("127.0.0.1", int(sys.argv[3]))); print("reached")
except OSError as error: print(type(error).__name__)
for family in (socket.AF_NETLINK, socket.AF_PACKET):
    try: socket.socket(family, socket.SOCK_RAW); print("raw", int(family))
    except OSError as error: print(errno.errorcode[error.errno])
"""
    with socket.socket(socket.AF_UNIX) as abstract, socket.socket(socket.AF_UNIX) as named:
        abstract.bind(f"\0{name}")
        abstract.listen()
        named.bind(str(tmp_path / "s"))
        named.listen()
        with socket.create_server(("127.0.0.1", 0)) as tcp:

            async def attack(sandbox: Sandbox) -> None:
                port = str(tcp.getsockname()[1])
                assert "reached" not in await _python(sandbox, code, name, str(tmp_path / "s"), port)

            attempt(attack)


def test_no_terminal_takes_injected_input(attempt: Callable[..., None]) -> None:
    code = """
import fcntl, termios
for fd in (0, 1, 2):
    try: fcntl.ioctl(fd, termios.TIOCSTI, b"x"); print("injected")
    except OSError as error: print(errno.errorcode[error.errno])
try: fcntl.ioctl(os.open("/dev/tty", os.O_RDWR), termios.TIOCSTI, b"x"); print("injected")
except OSError as error: print(errno.errorcode[error.errno])
"""

    async def attack(sandbox: Sandbox) -> None:
        assert "injected" not in await _python(sandbox, code)

    attempt(attack)


def test_the_owners_environment_and_keys_do_not_leak(
    attempt: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    token = uuid.uuid4().hex
    monkeypatch.setenv("HONE_TEST_TOKEN", token)

    async def attack(sandbox: Sandbox) -> None:
        seen = await sandbox.exec("env; cat /proc/*/environ /proc/*/cmdline /proc/keys 2>/dev/null")
        assert token not in seen.text
        assert "keyring" not in seen.text

    attempt(attack)


def test_the_runtime_that_runs_the_supervisor_cannot_be_changed(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        for command in (
            "echo > /opt/hone/venv/inside/supervisor.pyc",
            "rm -rf /opt/hone/venv/bin",
            "mv /opt/hone /opt/x",
            "mv /opt /x",
            "mkdir /opt/hone/new",
            "mv /opt/hone/python /opt/hone/x",
            "ln -sfn /tmp /opt/hone/venv",
            "rmdir /opt/hone/venv",
        ):
            await sandbox.exec(command)
        assert (await sandbox.exec("ls /opt/hone; command -v python3")).text == (
            "python\nvenv\n/opt/hone/venv/bin/python3\n"
        )
        assert (await sandbox.exec(["python3", "-m", "pytest", "--version"])).exit_code == 0

    attempt(attack)


def test_a_flood_of_processes_and_files_stays_inside(attempt: Callable[..., None]) -> None:
    async def attack(sandbox: Sandbox) -> None:
        bomb = "while :; do (while :; do :; done) & done"
        result = await sandbox.exec(bomb, timeout_s=1)
        assert result.timed_out
        await sandbox.exec("yes > /tmp/fill; yes > /dev/shm/fill")
        await sandbox.exec("rm -f /tmp/fill /dev/shm/fill")

    attempt(attack, SandboxSpec(limits=Limits(pids=32, disk_mib=8)))
