"""The channel to process 1: not reached from inside, and nothing that comes over it is believed."""

from __future__ import annotations

import asyncio
import itertools
import os
import socket
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hone.sandbox import Limits, Sandbox, SandboxError, SandboxSpec
from hone.sandbox.contract import Stream
from hone.sandbox.init.channel import Channel
from hone.sandbox.init.in_sandbox import wire
from hone.sandbox.init.sandbox import InitSandbox
from tests.attacks.sandbox.attack_target import AttackTarget, Outcomes, attack, program, watched

# An answer to every request there could be: it exited with 0 and said "forged".
FORGE = """
import struct
frames = b"".join(
    struct.pack("!IBI", 37 + 6, 21, number) + struct.pack("!iBQQdI", 0, 0, 6, 0, 0.0, 6) + b"forged"
    for number in range(1, 100)
)
def write(path):
    fd = os.open(path, os.O_WRONLY | os.O_NONBLOCK)
    return os.write(fd, frames)
def to_all(pids):
    sent = []
    for pid in pids:
        try: descriptors = os.listdir(f"/proc/{pid}/fd")
        except OSError: descriptors = range(64)
        for fd in descriptors:
            try: sent.append(write(f"/proc/{pid}/fd/{fd}"))
            except OSError: continue
    return sent
def to_descriptors():
    sent = []
    for fd in range(3, 1024):
        try: sent.append(os.write(fd, frames))
        except OSError: continue
    return sent
attempt("other processes", to_all, [arguments[0]])
attempt("its own descriptors", to_descriptors)
"""


@pytest.mark.full
def test_channel_cannot_be_written(attacked: AttackTarget) -> None:
    """In the control, a bystander holds the channel's write end, and the attacker inherited it."""
    reading, writing = os.pipe()
    with subprocess.Popen(["sleep", "1000"], pass_fds=[writing], stdin=subprocess.DEVNULL) as bystander:
        command = [sys.executable, "-c", program(FORGE), str(bystander.pid)]
        done = subprocess.run(command, pass_fds=[writing], capture_output=True, text=True, timeout=60)
        bystander.kill()
    assert Outcomes.parse(done.stdout).through.keys() == {"other processes", "its own descriptors"}
    assert b"forged" in os.read(reading, 1 << 16)
    os.close(reading)
    os.close(writing)

    async def act(sandbox: Sandbox) -> None:
        assert not (await attack(sandbox, FORGE, "1")).through
        result = await sandbox.exec("cat; exit 7", stdin=b"honest")
        assert (result.exit_code, result.stdout) == (7, b"honest")

    attacked.run(act)


def test_output_that_looks_like_a_frame_is_output(attacked: AttackTarget) -> None:
    async def act(sandbox: Sandbox) -> None:
        forged = (wire.HEADER.pack(37, wire.RESULT_KIND, 1) + bytes(37)) * 100
        told = {"stdout": b"", "stderr": b""}

        def tell(stream: Stream, data: bytes) -> None:
            told[stream] += data

        command = "cat; cat /proc/self/fd/0 >&2; exit 7"
        result = await sandbox.exec(command, stdin=forged, on_output=tell)
        assert (result.exit_code, result.stdout, told["stdout"]) == (7, forged, forged)

    attacked.run(act)


def test_init_process_answers_beside_a_hundred_writers(attacked: AttackTarget) -> None:
    """Ten thousand are started; as many as may live at a time fill their pipes, and hold them open."""

    async def act(sandbox: Sandbox) -> None:
        flood = "for i in $(seq 10000); do (while :; do echo $i; done) & done"
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            result = await sandbox.exec(flood, timeout_s=1)
            assert result.timed_out
            assert len(result.stdout) <= (sandbox.spec.limits.output_kib << 10) + 1
            await sandbox.exec("for i in $(seq 45); do (yes $i) & (yes $i >&2) & done")
            assert (await sandbox.exec(["/bin/echo", "here"])).text == "here\n"

    attacked.run(act, SandboxSpec(limits=Limits(pids=110)))


def test_concurrent_floods_of_output_are_all_answered(attacked: AttackTarget) -> None:
    async def act(sandbox: Sandbox) -> None:
        commands = (sandbox.exec("head -c 20M /dev/zero; exit 3", timeout_s=60) for _ in range(16))
        for result in await asyncio.gather(*commands):
            assert (result.exit_code, result.stdout_bytes) == (3, 20 << 20)

    attacked.run(act, SandboxSpec(limits=Limits(output_kib=16)))


@pytest.mark.full
def test_ten_gib_of_output_use_no_memory(attacked: AttackTarget) -> None:
    """As much as arrives in the time it is given, that is; what is kept stays the same."""

    async def act(sandbox: Sandbox) -> None:
        before = _resident_kib()
        async with watched(attacked.provider, attacked.with_image(SandboxSpec())):
            result = await sandbox.exec("head -c 10G /dev/zero", timeout_s=3)
            live: list[int] = []
            await sandbox.exec(
                "head -c 10G /dev/zero", timeout_s=4, on_output=lambda _, data: live.append(len(data))
            )
        assert result.timed_out or result.stdout_bytes == 10 << 30
        assert len(result.stdout) <= (sandbox.spec.limits.output_kib << 10) + 1
        assert sum(live) > 0
        assert _resident_kib() - before < 128 << 10

    attacked.run(act)


def _resident_kib() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


# --- a process 1 that fell to the attacker, and says what it wants


@asynccontextmanager
async def taken_over(reply: Callable[[int, int], bytes]) -> AsyncIterator[InitSandbox]:
    """A sandbox whose supervisor answers each request (kind, number) with the bytes of `reply`."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    reader, writer = await asyncio.open_unix_connection(sock=theirs)
    _, channel = await loop.create_unix_connection(Channel, sock=ours)

    async def answer() -> None:
        try:
            while True:
                size, kind, number = wire.HEADER.unpack(await reader.readexactly(wire.HEADER.size))
                await reader.readexactly(size)
                writer.write(reply(kind, number))
                await writer.drain()
        except (asyncio.IncompleteReadError, ConnectionError):
            return

    async def closed() -> None:
        writer.close()

    spec = SandboxSpec(workdir="/testbed", limits=Limits(output_kib=1))
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(answer())
        sandbox = InitSandbox("s", spec, channel, {}, {}, closed)
        yield sandbox
        await sandbox.close()


def _frame(kind: int, number: int, body: bytes) -> bytes:
    return wire.HEADER.pack(len(body), kind, number) + body


def _entry(kind: bytes, name: bytes, link: bytes = b"") -> bytes:
    return wire.pack(wire.ENTRY.pack(kind, 0o6777, 1 << 62), name, link)


RESULT = wire.RESULT.pack(0, 0, 1 << 40, 0, 0.0, 1 << 20) + bytes(1 << 20)
LIES = {
    "a frame without end": lambda kind, number: wire.HEADER.pack(0xFFFFFFFF, 22, number) + bytes(100),
    "a short answer": lambda kind, number: _frame(wire.RESULT_KIND, number, b"x"),
    "more output than the limit": lambda kind, number: _frame(wire.RESULT_KIND, number, RESULT),
    "another kind of answer": lambda kind, number: _frame(77, number, b""),
    "an error without number": lambda kind, number: _frame(wire.ERROR_KIND, number, b"abc"),
    "a file without end": lambda kind, number: _frame(wire.DATA_KIND, number, bytes(8 + wire.CHUNK)),
}


@pytest.mark.parametrize("lie", LIES)
@pytest.mark.parametrize("request_", ["exec", "read", "list"])
def test_malicious_init_process_raises_a_typed_error(
    runner: asyncio.Runner, tmp_path: Path, lie: str, request_: str
) -> None:
    async def run() -> None:
        async with taken_over(LIES[lie]) as sandbox, asyncio.timeout(30):
            requests = {
                "exec": lambda: sandbox.exec("true"),
                "read": lambda: sandbox.read("file"),
                "list": lambda: sandbox.download("tree", tmp_path / "out"),
            }
            with pytest.raises((SandboxError, OSError)):
                await requests[request_]()

    runner.run(run())


@pytest.mark.parametrize(
    "entries",
    [
        [_entry(b"f", b"../escaped")],
        [_entry(b"f", b"/tmp/escaped")],
        [_entry(b"f", b"..")],
        [_entry(b"f", b"x\0y")],
        [_entry(b"f", b"")],
        [_entry(b"l", b"link", b"../.."), _entry(b"f", b"link")],
        [_entry(b"l", b"link", b"/etc")],
        [_entry(b"f", b"twice"), _entry(b"l", b"twice", b"x")],
        [_entry(b"?", b"device")],
        [b"\xff\xff\xff\xff"],
        [b""],
    ],
)
def test_forged_listing_stays_in_its_target(
    runner: asyncio.Runner, tmp_path: Path, entries: list[bytes]
) -> None:
    """With names that are paths, links before what lies below them, and the same name twice."""
    (tmp_path / "into").mkdir()
    # requested twice: what the top is, and what it holds
    forged = [_entry(b"d", b"") + b"".join(entries)] * 2
    listings = itertools.chain(forged, itertools.repeat(_entry(b"d", b"")))

    def reply(kind: int, number: int) -> bytes:
        listing = kind == wire.LIST_KIND
        body = next(listings) if listing else wire.DATA.pack(4) + b"evil"
        return _frame(wire.DATA_KIND, number, body)

    async def run() -> None:
        async with taken_over(reply) as sandbox, asyncio.timeout(30):
            try:
                await sandbox.download("tree", tmp_path / "into" / "out")
            except (SandboxError, OSError):
                return

    runner.run(run())
    assert [path.name for path in tmp_path.iterdir()] == ["into"]
    assert {path.name for path in (tmp_path / "into").iterdir()} <= {"out"}
    assert not any(path.is_symlink() for path in (tmp_path / "into").rglob("*"))


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(noise=st.binary(max_size=200), kind=st.integers(18, 30), honest=st.booleans())
def test_arbitrary_bytes_give_a_reply_or_a_typed_error(
    runner: asyncio.Runner, noise: bytes, kind: int, honest: bool
) -> None:
    """Noise as it is, followed by the end of the connection; or in a frame of the request that is waiting."""

    async def run() -> None:
        def reply(_: int, number: int) -> bytes:
            return _frame(kind, number, noise) if honest else noise

        async with taken_over(reply) as sandbox:
            for ask in (sandbox.exec("true"), sandbox.read("file")):
                try:
                    async with asyncio.timeout(0.2 if kind in (20, 24, 25) or not honest else 30):
                        await ask
                except (SandboxError, OSError):
                    continue

    runner.run(run())
