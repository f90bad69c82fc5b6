"""Processes that will not end: they end with their command's time, or with the sandbox."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from hone.sandbox import ExecResult, Limits, Sandbox, SandboxSpec
from tests.attacks.sandbox.attack_target import AttackTarget, program

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


@pytest.mark.parametrize("company", ["alone", pytest.param("beside another", marks=pytest.mark.full)])
@pytest.mark.parametrize("kind", HIDE)
def test_hidden_process_dies_with_its_command(
    attacked: AttackTarget, kind: str, company: str, tmp_path: Path
) -> None:
    beat = tmp_path / "beat"
    assert kind == "ignores every signal" or _outlives_a_plain_timeout(_code(kind), beat)

    async def act(sandbox: Sandbox) -> None:
        other = ""
        if company == "beside another":
            other = f"/proc/{(await sandbox.exec('sleep 1000 & echo $!')).text}"
        for _ in range(5 if kind == QUICK else 1):
            await _end(sandbox, await _begin(sandbox, kind))
            assert await _alive(sandbox) == other

    attacked.run(act)


@pytest.mark.parametrize("times", [1, pytest.param(5, marks=pytest.mark.full)])
def test_fork_chain_is_killed_and_a_stopped_command_stays_stopped(attacked: AttackTarget, times: int) -> None:
    async def act(sandbox: Sandbox) -> None:
        await sandbox.exec("mkfifo /tmp/gate")
        for _ in range(times):
            fleeing = await _begin(sandbox, QUICK)
            halts = "sleep 1000 & kill -STOP $!; echo $! > /tmp/halted; cat /tmp/gate; kill -9 $!"
            later = asyncio.ensure_future(sandbox.exec(halts, timeout_s=600))
            await sandbox.exec("until [ -s /tmp/halted ]; do sleep 0.01; done")
            await _end(sandbox, fleeing)
            assert (await sandbox.exec("cut -d' ' -f3 /proc/$(cat /tmp/halted)/stat")).text == "T\n"
            await sandbox.exec("rm /tmp/halted; echo > /tmp/gate")
            assert (await later).exit_code == 0
            assert await _alive(sandbox) == ""

    # room for the zombies, which are many until they are reaped, and for the later command
    attacked.run(act, SandboxSpec(limits=Limits(pids=20_000)))


def test_hidden_process_dies_at_the_timeout(attacked: AttackTarget) -> None:
    async def act(sandbox: Sandbox) -> None:
        command = "(setsid sleep 1000 &); (setsid setsid sleep 1000 &); sleep 1000"
        assert (await sandbox.exec(command, timeout_s=1)).timed_out
        assert await _alive(sandbox) == ""

    attacked.run(act)


async def _begin(sandbox: Sandbox, kind: str) -> asyncio.Task[ExecResult]:
    """Start an attack; return its command once the attack has begun."""
    command = ["python3", "-c", program(_code(kind)), "/tmp/beat"]
    running = asyncio.create_task(sandbox.exec(command, timeout_s=1000))
    begun = await sandbox.exec("until [ -s /tmp/beat ]; do sleep 0.01; done", timeout_s=120)
    assert not begun.timed_out
    return running


async def _end(sandbox: Sandbox, running: asyncio.Task[ExecResult]) -> None:
    """Cancel a command, which kills it as its timeout would; from then on nothing of it may run."""
    running.cancel()
    await asyncio.wait([running])
    sizes = "stat -c %s /tmp/beat; sleep 0.1; stat -c %s /tmp/beat; rm /tmp/beat"
    result = await sandbox.exec(sizes)
    while result.exit_code == 126:  # zombies still use up the limit on processes
        result = await sandbox.exec(sizes)
    before, after = result.text.split()
    assert before == after


async def _alive(sandbox: Sandbox) -> str:
    """Return the live processes but process 1 and the caller, once zombies that are being reaped are gone."""
    look = "for p in /proc/[0-9]*; do [ $p = /proc/1 ] || [ $p = /proc/$$ ] || echo $p; done"
    zombies = "while grep -qs '^State:.Z' /proc/[0-9]*/status; do sleep 0.01; done"
    result = await sandbox.exec(f"{zombies}; {look}", timeout_s=120)
    assert not result.timed_out
    return result.text


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


def test_result_does_not_wait_for_background_output(attacked: AttackTarget) -> None:
    """The control is a plain pipe, which ends with its last writer."""
    begun = time.monotonic()
    subprocess.run("(setsid sleep 2 &) ; echo done", shell=True, capture_output=True)
    assert time.monotonic() - begun >= 2

    async def act(sandbox: Sandbox) -> None:
        result = await sandbox.exec("(setsid sleep 1000 &) ; echo done", timeout_s=100)
        assert (result.exit_code, result.text, result.timed_out) == (0, "done\n", False)

    attacked.run(act)


@pytest.mark.full
def test_stopped_process_ends_with_the_sandbox(attacked: AttackTarget) -> None:
    async def act(sandbox: Sandbox) -> None:
        for _ in range(5):
            await sandbox.exec("trap '' TERM HUP INT; (setsid sleep 1000 & kill -STOP $!) & true")
            await sandbox.exec("trap '' TERM HUP INT; (while :; do :; done) > /dev/null 2>&1 &")
        await sandbox.exec("trap '' TERM; (sleep 1000; true) & kill -STOP -1; sleep 1000", timeout_s=1)

    attacked.run(act, survives=False)


def test_cancelled_command_leaves_no_process(attacked: AttackTarget) -> None:
    token = uuid.uuid4().hex

    async def act(sandbox: Sandbox) -> None:
        running = asyncio.ensure_future(
            sandbox.exec(f"trap '' TERM; (setsid sleep 1000 &); echo > {token}; sleep 1000", timeout_s=1000)
        )
        await sandbox.exec(f"until [ -e {token} ]; do sleep 0.01; done")
        running.cancel()
        await asyncio.wait([running])
        gone = "until ! grep -qsz '^sleep' /proc/[0-9]*/cmdline; do :; done"
        assert (await sandbox.exec(gone, timeout_s=120)).exit_code == 0

    attacked.run(act, SandboxSpec())
