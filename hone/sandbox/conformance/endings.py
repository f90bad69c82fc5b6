"""How commands and sandboxes end: time-outs, cancellation, closing, loss."""

from __future__ import annotations

import asyncio
import time

from hone.sandbox.conformance.registry import check, new, until
from hone.sandbox.contract import (
    Limits,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxLost,
    SandboxSpec,
)


@check
async def a_timed_out_command_keeps_its_output_so_far(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec("echo early; echo late >&2; sleep 1000; echo never", timeout_s=2)
    assert (result.timed_out, result.exit_code) == (True, -1)
    assert (result.stdout, result.stderr) == (b"early\n", b"late\n")
    assert result.seconds >= 2


@check
async def a_timed_out_command_dies_with_its_children(provider: Provider) -> None:
    command = (
        "sleep 1001 & (sleep 1001 &) ; setsid sleep 1001 & setsid bash -c 'sleep 1001 & disown' & sleep 1001"
    )
    async with await new(provider) as sandbox:
        assert (await sandbox.exec(command, timeout_s=0.5)).timed_out
        assert (await sandbox.exec(["pgrep", "-f", "sleep 1001"])).text == ""


@check
async def a_timed_out_daemon_that_forked_twice_dies_too(provider: Provider) -> None:
    daemon = (
        "import os, signal\n"
        "for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('/tmp/daemon', 'w').write(str(os.getpid())); signal.pause()\n"
        "    os._exit(0)\n"
        "signal.pause()\n"
    )
    async with await new(provider) as sandbox:
        for _ in range(2):  # alone, and beside a process that stays
            running = asyncio.ensure_future(sandbox.exec(["python3", "-c", daemon], timeout_s=5))
            await until(sandbox, "test -s /tmp/daemon")
            assert (await running).timed_out
            assert (await sandbox.exec("kill -0 $(cat /tmp/daemon)")).exit_code == 1
            await sandbox.exec("rm /tmp/daemon; sleep 1004 &")
        assert len((await sandbox.exec(["pgrep", "-f", "sleep 1004"])).text.split()) == 2


@check
async def a_timeout_spares_the_other_commands(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        await sandbox.exec("mkfifo gate")
        other = asyncio.ensure_future(sandbox.exec("sleep 1002 & cat gate; kill %1; echo spared"))
        assert (await sandbox.exec("sleep 1000", timeout_s=0.3)).timed_out
        await sandbox.exec("echo > gate")
        assert (await other).text.endswith("spared\n")


@check
async def a_timeout_spares_the_commands_that_began_later(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        await sandbox.exec("mkfifo gate")
        first = asyncio.ensure_future(
            sandbox.exec("(setsid sleep 1005 &) ; touch begun; sleep 1005", timeout_s=5)
        )
        await until(sandbox, "test -e begun")
        other = asyncio.ensure_future(sandbox.exec("(setsid sleep 1006 &) ; cat gate; echo spared"))
        await until(sandbox, "pgrep -f '^sleep 1006'")
        assert (await first).timed_out
        assert (await sandbox.exec(["pgrep", "-f", "sleep 1005"])).text == ""
        assert len((await sandbox.exec(["pgrep", "-f", "^sleep 1006"])).text.split()) == 1
        await sandbox.exec("echo > gate")
        assert (await other).text.endswith("spared\n")


@check
async def background_processes_neither_hold_up_the_result_nor_die(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        started = time.monotonic()
        result = await sandbox.exec("(while :; do echo noise; sleep 0.05; done) & echo $! >&2", timeout_s=100)
        assert time.monotonic() - started < 50
        pid = result.stderr.decode()
        assert (await sandbox.exec(f"sleep 0.2; kill -0 {pid}")).exit_code == 0


@check
async def a_cancelled_command_dies(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        running = asyncio.ensure_future(sandbox.exec("sleep 1003 & echo > started; sleep 1003"))
        await until(sandbox, "test -e started")
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await until(sandbox, "pgrep -f 'sleep 100[3]'", wanted=1)
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@check
async def a_timeout_must_be_positive_and_a_command_not_empty(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        for command, timeout_s in (("true", 0), ("true", -1.0), ([], 1.0)):
            try:
                await sandbox.exec(command, timeout_s=timeout_s)
            except ValueError:
                continue
            raise AssertionError(f"accepted {command!r} with {timeout_s}")


async def _is_lost(sandbox: Sandbox) -> None:
    for attempt in (sandbox.exec("true"), sandbox.read("/etc/passwd"), sandbox.write("x", b"")):
        try:
            await attempt
        except SandboxLost:
            continue
        raise AssertionError("a lost sandbox answered")


@check
async def closing_twice_is_safe_and_nothing_runs_after(provider: Provider) -> None:
    sandbox = await new(provider)
    await sandbox.close()
    await sandbox.close()
    await _is_lost(sandbox)


@check
async def closing_during_a_command_makes_it_raise(provider: Provider) -> None:
    sandbox = await new(provider)
    running = asyncio.ensure_future(sandbox.exec("echo > started; sleep 1000", timeout_s=1000))
    await until(sandbox, "test -e started")
    await sandbox.close()
    await asyncio.wait([running])
    assert isinstance(running.exception(), SandboxLost)


@check
async def killing_everything_inside_leaves_it_usable_or_lost(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        try:
            assert (await sandbox.exec("kill -9 -1; kill -9 1; kill -9 $$")).exit_code == 137
            assert (await sandbox.exec("echo alive")).text == "alive\n"
        except SandboxLost:
            await _is_lost(sandbox)


@check
async def removing_everything_inside_does_not_hang_it(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        try:
            await sandbox.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout_s=1.5)
            await sandbox.exec("true", timeout_s=10)
        except SandboxLost:
            await _is_lost(sandbox)


@check
async def sandboxes_do_not_share_anything(provider: Provider) -> None:
    async with await new(provider) as one, await new(provider) as two:
        await one.exec("echo secret | tee /tmp/x /dev/shm/x /testbed/x /usr/local/x; sleep 1004 &")
        seen = await two.exec("ls /tmp /dev/shm /testbed; cat /usr/local/x; pgrep -f 'sleep 100[4]'")
        assert b"x" not in seen.stdout
        assert seen.exit_code != 0
        await one.close()
        assert (await two.exec("echo alive")).text == "alive\n"


@check
async def an_image_that_cannot_be_served_is_refused_for_good(provider: Provider) -> None:
    try:
        await provider.start(SandboxSpec(image="no-such-scheme://x"))
    except ProviderUnavailable as error:
        refusal = error
    else:
        raise AssertionError("an unknown image started")
    assert not refusal.retryable
    assert "no-such-scheme://x" in str(refusal)


@check
async def a_command_that_stops_itself_is_killed_by_its_timeout(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec("echo before; kill -STOP $$; echo never", timeout_s=2)
        assert (result.timed_out, result.stdout) == (True, b"before\n")
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@check
async def a_cancelled_start_leaves_the_provider_usable(provider: Provider) -> None:
    for pause in (0.0, 0.002, 0.01, 0.02):  # seconds, to meet it in different stages
        starting = asyncio.ensure_future(new(provider))
        await asyncio.sleep(pause)
        starting.cancel()
        try:
            await (await starting).close()
        except asyncio.CancelledError:
            continue
    async with await new(provider) as sandbox:
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@check
async def many_sandboxes_start_at_once(provider: Provider) -> None:
    async def visit(number: int) -> str:
        async with await new(provider) as sandbox:
            await sandbox.write("number", str(number).encode())
            return (await sandbox.exec("cat number")).text

    assert await asyncio.gather(*(visit(number) for number in range(24))) == [str(n) for n in range(24)]


@check
async def closing_from_several_tasks_at_once_is_safe(provider: Provider) -> None:
    sandbox = await new(provider)
    await sandbox.exec("sleep 1000 &")
    await asyncio.gather(*(sandbox.close() for _ in range(5)))
    await _is_lost(sandbox)


@check
async def leaving_its_block_by_an_error_closes_it(provider: Provider) -> None:
    sandbox = await new(provider)
    try:
        async with sandbox:
            raise KeyError("x")
    except KeyError:
        await _is_lost(sandbox)


@check
async def processes_in_the_background_serve_later_commands(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        await sandbox.exec("mkfifo ask tell; (read -r word < ask; echo got $word > tell) > log 2>&1 &")
        assert (await sandbox.exec("echo hello > ask; cat tell")).text == "got hello\n"


@check
async def orphans_are_reaped(provider: Provider) -> None:
    async with await new(provider, Limits(pids=64)) as sandbox:
        for _ in range(3):
            spawned = await sandbox.exec("for i in $(seq 100); do (setsid true &); done")
            assert spawned.exit_code == 0
        await until(sandbox, "grep -q '^State:.Z' /proc/[0-9]*/status", wanted=1)
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@check
async def a_flood_of_output_ends_with_its_timeout(provider: Provider) -> None:
    async with await new(provider, Limits(output_kib=4)) as sandbox:
        result = await sandbox.exec("yes", timeout_s=2)
        assert result.timed_out
        assert result.stdout == b"y\n" * 2048
        assert result.stdout_bytes > 4096
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@check
async def input_that_nobody_reads_does_not_outlast_its_timeout(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec("sleep 1000", stdin=b"x" * (8 << 20), timeout_s=0.5)
        assert result.timed_out
        assert (await sandbox.exec("cat", stdin=b"next")).text == "next"


@check
async def a_cancelled_write_leaves_the_sandbox_usable(provider: Provider) -> None:
    data = bytes(range(256)) * (16 << 12)
    async with await new(provider) as sandbox:
        for pause in (0.0, 0.005, 0.02):  # seconds, to meet it in different stages
            writing = asyncio.ensure_future(sandbox.write("big", data))
            await asyncio.sleep(pause)
            writing.cancel()
            await asyncio.wait([writing])
        await sandbox.write("big", data)
        assert await sandbox.read("big") == data
