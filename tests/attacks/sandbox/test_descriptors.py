"""No way out through descriptors, terminals, or the files that the sandbox itself runs from."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.attacks.sandbox.attack_target import AttackTarget, Outcomes, attack, control, program


def test_open_descriptor_of_the_owner_is_not_inherited(
    attacked: AttackTarget, secret: Path, tmp_path: Path
) -> None:
    """Open and inheritable before the provider begins, so that each of its processes could pass it on."""
    code = """
token = arguments[0].encode()
def search():
    for fd in os.listdir("/proc/self/fd"):
        try:
            if token in os.pread(int(fd), 100, 0): return fd
        except OSError: continue
attempt("find it", search)
attempt("any but three", lambda: sorted(set(os.listdir("/proc/self/fd")) - {"0", "1", "2"})[1:])
"""
    fds = [os.open(secret, os.O_RDWR), os.open("/", os.O_RDONLY)]
    for fd in fds:
        os.set_inheritable(fd, True)
    token = secret.read_text()
    command = [sys.executable, "-c", program(code), token]
    free = Outcomes.parse(subprocess.run(command, close_fds=False, capture_output=True, text=True).stdout)
    assert len(free.through) == 2

    async def run() -> Outcomes:
        settings = SandboxSettings(
            state_dir=tmp_path / "state", cache_dir=attacked.state.parent.parent / "cache"
        )
        async with make_provider(settings) as provider, await provider.start(attacked.spec) as sandbox:
            return await attack(sandbox, code, token)

    try:
        held = attacked.runner.run(run())
    finally:
        for fd in fds:
            os.close(fd)
    assert not held.through
    assert held.names() == free.names()


def test_parent_directories_are_unreachable_by_descriptor(attacked: AttackTarget, secret: Path) -> None:
    """From every directory that is open, or can be opened, upwards."""
    attacked.assert_denied(
        """
(path,) = arguments
def climb(start):
    fd = os.open(start, os.O_RDONLY)
    for _ in range(64):
        fd = os.open("..", os.O_RDONLY, dir_fd=fd)
    return os.read(os.open(path.lstrip("/"), os.O_RDONLY, dir_fd=fd), 100)
for start in (".", "/proc/self/cwd", "/proc/self/root", "/dev/fd", "/proc/self/fd"):
    attempt(start, climb, start)
""",
        str(secret),
    )


def test_terminal_injection_is_denied(attacked: AttackTarget) -> None:
    """TIOCSTI puts input into the terminal that started the sandbox; TIOCLINUX into the console."""
    code = """
import fcntl, pty, termios
def inject(open_terminal):
    fcntl.ioctl(open_terminal(), termios.TIOCSTI, b"x")
    return True
def own():
    inner, outer = pty.openpty()
    pid = os.fork()
    if pid == 0:
        number = 0
        try:
            os.setsid()
            fcntl.ioctl(outer, termios.TIOCSCTTY, 0)
            inject(lambda: outer)
        except OSError as error: number = error.errno
        os._exit(number)
    number = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    if number: raise OSError(number, "in a child")
    return True
attempt("of its own", own)
for fd in (0, 1, 2):
    try: inject(lambda: fd); tell(f"descriptor {fd}", True)
    except OSError: pass
try: inject(lambda: os.open("/dev/tty", os.O_RDWR)); tell("/dev/tty", True)
except OSError: pass
"""
    attacked.assert_denied(code)


def test_terminal_of_the_owner_is_unreachable(attacked: AttackTarget) -> None:
    """With a terminal as its own, an owner's sandboxes neither see nor hold it."""
    code = """
attempt("open", os.open, "/dev/tty", os.O_RDWR)
attempt("foreground", lambda: os.tcgetpgrp(os.open("/dev/tty", os.O_RDWR)))
"""
    command = shlex.join([sys.executable, "-c", program(code)])
    done = subprocess.run(["script", "-qec", command, "/dev/null"], capture_output=True, text=True)
    free = Outcomes.parse(done.stdout)
    assert set(free.through) == {"open", "foreground"}, done.stdout

    async def act(sandbox: Sandbox) -> None:
        held = await attack(sandbox, code)
        assert not held.through
        assert held.names() == free.names()

    attacked.run(act)


def test_interpreter_of_the_init_process_is_read_only(attacked: AttackTarget, tmp_path: Path) -> None:
    """A descriptor of /proc/PID/exe, kept until the program may be written again, was a way to the host."""
    copy = tmp_path / "program"
    shutil.copy(shutil.which("sleep") or "/bin/sleep", copy)
    code = """
import subprocess, time
pid = int(arguments[0])
if pid == 0:
    process = subprocess.Popen([arguments[1], "1000"])
    pid = process.pid
    fd = os.open(f"/proc/{pid}/exe", os.O_PATH)
    process.kill(); process.wait()
    attempt("exe", lambda: os.write(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), b"x"))
else:
    def overwrite():
        fd = os.open(f"/proc/{pid}/exe", os.O_PATH)
        return os.write(os.open(f"/proc/self/fd/{fd}", os.O_WRONLY), b"x")
    attempt("exe", overwrite)
"""
    assert control(code, "0", str(copy)).through == {"exe": "1"}

    async def act(sandbox: Sandbox) -> None:
        assert not (await attack(sandbox, code, "1")).through

    attacked.run(act)


def test_bundle_cannot_be_changed_or_moved(attacked: AttackTarget, tmp_path: Path) -> None:
    """The supervisor's interpreter and libraries: neither in place, nor by moving what is above them."""
    copy = tmp_path / "opt"
    (copy / "hone" / "part").mkdir(parents=True)
    (copy / "hone" / "part" / "file").write_text("original")
    attacked.assert_denied(
        """
import shutil
opt = arguments[0]
part = f"{opt}/hone/" + sorted(os.listdir(opt + "/hone"))[0]
file = next(os.path.join(folder, files[0]) for folder, _, files in os.walk(part) if files)
attempt("overwrite", lambda: os.write(os.open(file, os.O_WRONLY), b"x"))
attempt("new file beside it", lambda: os.open(os.path.dirname(file) + "/new", os.O_CREAT))
attempt("new directory", lambda: os.mkdir(opt + "/hone/new") or True)
attempt("remove", lambda: os.unlink(file) or True)
attempt("move a part", lambda: os.rename(part, opt + "/hone/moved") or True)
attempt("move it all", lambda: os.rename(opt + "/hone", opt + "/moved") or True)
attempt("move what is above", lambda: os.rename(opt, opt + "-moved") or True)
""",
        "/opt",
        outside=(str(copy),),
    )


def test_replaced_program_affects_one_sandbox(attacked: AttackTarget) -> None:
    """Inside, bash and the C library may be replaced: in that sandbox, not in the host nor in the next."""

    async def act(sandbox: Sandbox) -> None:
        where = (await sandbox.exec("readlink -f $(command -v env)")).text.strip()
        await sandbox.exec(f"cp {where} old; rm {where}; printf '#!/bin/bash\\necho attacked' > {where}")
        await sandbox.exec(f"chmod 755 {where}")
        changed = (await sandbox.exec(["env"])).text == "attacked\n"
        async with await attacked.provider.start(attacked.with_image(SandboxSpec())) as other:
            assert "attacked" not in (await other.exec(["env"])).text
        if changed:
            await sandbox.exec(f"rm {where}; cp old {where}")

    attacked.run(act)
    assert "attacked" not in subprocess.run(["env"], capture_output=True, text=True).stdout


def test_replaced_directories_do_not_redirect_the_provider(attacked: AttackTarget) -> None:
    """What the next command is started with is not looked up in what the attacker may replace."""

    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec(
            "mkdir -p /tmp/evil; mv /tmp /tmp.old; ln -s / /tmp; rm -rf ~; ln -s /proc ~; true"
        )
        await sandbox.exec("rm -rf /testbed/* /home /var /run 2>/dev/null; ln -s /etc /testbed/x; true")
        assert (await sandbox.exec(["/bin/echo", "on"], cwd="/")).text == "on\n"
        await sandbox.write("/x/file", b"data")
        assert await sandbox.read("/x/file") == b"data"

    attacked.run(act)
