"""Processes that will not end: they end with their command's time, or with the sandbox."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from hone.sandbox import Limits, Sandbox, SandboxSpec
from tests.attacks.sandbox.stage import Stage, program

# What a process does to be overlooked when its command is killed; each ends in `stay`.
HIDE = {
    "ignores every signal": """
for number in range(1, 65):
    try: signal.signal(number, signal.SIG_IGN)
    except (OSError, ValueError): continue
stay()
""",
    "begins a session": "os.fork() or (os.setsid(), stay())\nsignal.pause()",
    "forks twice": "os.fork() or (os.setsid(), os.fork() and os._exit(0), stay())\nsignal.pause()",
    "renames itself": """
if os.fork() == 0:
    libc.prctl(15, b"kworker/0:1", 0, 0, 0)
    loop = "while :; do echo x >> $0; sleep 0.002; done"
    os.execv("/bin/bash", ["[kworker/0:1]", "-c", loop, arguments[0]])
signal.pause()
""",
    "leaves its parent's care": """
libc.prctl(36, 0, 0, 0, 0)
os.fork() or (os.setsid(), os.fork() and os._exit(0), stay())
signal.pause()
""",
    "is born a sibling": """
try: pid = call("clone", 0x8000 | 17, 0, 0, 0, 0)
except PermissionError: pid = os.fork()
if pid == 0:
    os.setsid()
    stay()
signal.pause()
""",
    "flees from kill to kill": """
os.setsid() if os.getpid() != os.getsid(0) else None
pid = os.getpid()
if os.fork() == 0:
    while True:
        if os.fork(): os._exit(0)
        stay(0.001)
signal.pause()
""",
    "flees as quickly as it can": """
beat = os.open(arguments[0], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
for _ in range(3):
    if os.fork() == 0:
        while True:
            os.write(beat, b"x")
            if libc.fork() > 0: libc._exit(0)
signal.pause()
""",
    "is stopped": """
if os.fork() == 0:
    if os.fork() == 0: stay()
    os.kill(os.getpid(), signal.SIGSTOP)
signal.pause()
""",
    "is a vfork that waits": """
import subprocess
os.fork() or (os.setsid(), subprocess.run([sys.executable, "-c", staying, arguments[0]]))
signal.pause()
""",
}
STAY = """
import os, signal, sys, time
def stay(seconds=None):
    end = time.monotonic() + (seconds or 1e9)
    while time.monotonic() < end:
        with open(sys.argv[1] if len(sys.argv) > 1 else arguments[0], "a") as file: file.write("x")
        time.sleep(0.002)
"""


def _code(kind: str) -> str:
    return f"{STAY}\nstaying = {STAY + 'stay()'!r}\n{HIDE[kind]}"


# It is in no list of processes for long: one that is killed as it is seen gets away every other time.
QUICK = "flees as quickly as it can"


@pytest.mark.parametrize("company", ["alone", "beside another"])
@pytest.mark.parametrize("kind", HIDE)
def test_after_its_time_nothing_of_a_command_runs_that(
    stage: Stage, kind: str, company: str, tmp_path: Path
) -> None:
    beat = tmp_path / "beat"
    assert kind == "ignores every signal" or _outlives_a_plain_timeout(_code(kind), beat)

    async def act(sandbox: Sandbox) -> None:
        begun, other = 1, ""
        if company == "beside another":
            other = f"/proc/{(await sandbox.exec('sleep 1000 & echo $!')).text}"
        for timeout_s in (1, 4, 16):  # until it has begun
            command = ["python3", "-c", program(_code(kind)), "/tmp/beat"]
            assert (await sandbox.exec(command, timeout_s=timeout_s)).timed_out
            begun = (await sandbox.exec(["test", "-s", "/tmp/beat"])).exit_code
            if begun == 0:
                break
        assert begun == 0
        assert await _alive(sandbox) == other
        for _ in range(4 if kind == QUICK else 0):
            assert (await sandbox.exec(command, timeout_s=timeout_s)).timed_out
            assert await _alive(sandbox) == other

    stage.play(act)


def test_what_flees_is_caught_and_a_command_that_began_later_goes_on_as_it_was(stage: Stage) -> None:
    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("mkfifo /tmp/gate")
        for _ in range(3):
            flees = ["python3", "-c", program(_code(QUICK)), "/tmp/beat"]
            fleeing = asyncio.ensure_future(sandbox.exec(flees, timeout_s=6))
            await sandbox.exec("until [ -s /tmp/beat ]; do sleep 0.01; done")
            halts = "sleep 1000 & kill -STOP $!; echo $! > /tmp/halted; cat /tmp/gate; kill -9 $!"
            later = asyncio.ensure_future(sandbox.exec(halts))
            await sandbox.exec("until [ -s /tmp/halted ]; do sleep 0.01; done")
            assert (await fleeing).timed_out
            assert (await sandbox.exec("cut -d' ' -f3 /proc/$(cat /tmp/halted)/stat")).text == "T\n"
            await sandbox.exec("rm /tmp/halted /tmp/beat; echo > /tmp/gate")
            assert (await later).exit_code == 0
            assert await _alive(sandbox) == ""

    # enough for the dead, which are many until they are reaped, and for the command that begins later
    stage.play(act, SandboxSpec(limits=Limits(pids=20_000)))


async def _alive(sandbox: Sandbox) -> str:
    """What runs inside beside process 1 and the one that looks."""
    look = "for p in /proc/[0-9]*; do [ $p = /proc/1 ] || [ $p = /proc/$$ ] || echo $p; done"
    return (await sandbox.exec(look)).text


def _outlives_a_plain_timeout(code: str, beat: Path) -> bool:
    """Whether the attack goes on after a timeout that kills the process which was started, as most do."""
    inner = [sys.executable, "-c", program(code), str(beat)]
    shell = """
"$@" & until [ -s $B ]; do sleep 0.05; done
kill -9 $!; wait; before=$(stat -c %s $B)
for i in $(seq 300); do [ $before != $(stat -c %s $B) ] && exit 0; sleep 0.1; done; exit 1
"""
    command = ["unshare", "--pid", "--fork", "--kill-child", "--mount-proc", "bash", "-c", shell, "bash"]
    environment = {"B": str(beat), "PATH": "/usr/bin:/bin"}
    return subprocess.run([*command, *inner], timeout=60, env=environment).returncode == 0


def test_a_command_s_answer_does_not_wait_for_who_holds_its_output(stage: Stage) -> None:
    """The control is a plain pipe, which ends with its last writer."""
    begun = time.monotonic()
    subprocess.run("(setsid sleep 2 &) ; echo done", shell=True, capture_output=True)
    assert time.monotonic() - begun >= 2

    async def act(sandbox: Sandbox) -> None:
        result = await sandbox.exec("(setsid sleep 1000 &) ; echo done", timeout_s=100)
        assert (result.exit_code, result.text, result.timed_out) == (0, "done\n", False)
        assert result.seconds < 50

    stage.play(act)


def test_what_ignores_signals_and_is_stopped_ends_with_the_sandbox(stage: Stage) -> None:
    async def act(sandbox: Sandbox) -> None:
        for _ in range(5):
            await sandbox.exec("trap '' TERM HUP INT; (setsid sleep 1000 & kill -STOP $!) & true")
            await sandbox.exec("trap '' TERM HUP INT; (while :; do :; done) > /dev/null 2>&1 &")
        await sandbox.exec("trap '' TERM; (sleep 1000; true) & kill -STOP -1; sleep 1000", timeout_s=1)

    stage.play(act, survives=False)


def test_a_cancelled_command_leaves_no_process(stage: Stage) -> None:
    token = uuid.uuid4().hex

    async def act(sandbox: Sandbox) -> None:
        running = asyncio.ensure_future(
            sandbox.exec(f"trap '' TERM; (setsid sleep 1000 &); echo > {token}; sleep 1000", timeout_s=1000)
        )
        await sandbox.exec(f"until [ -e {token} ]; do sleep 0.01; done")
        running.cancel()
        await asyncio.wait([running])
        gone = "until ! grep -qsz '^sleep' /proc/[0-9]*/cmdline; do :; done"
        assert (await sandbox.exec(gone, timeout_s=30)).exit_code == 0

    stage.play(act, SandboxSpec())
