"""How commands and sandboxes end: timeouts, cancellation, closing, loss."""

from __future__ import annotations

import asyncio

import pytest

from hone.sandbox.conformance.suite import assert_usable, check, run_into_timeout, start, wait_for_exit_code
from hone.sandbox.contract import Limits, Provider, ProviderUnavailable, Sandbox, SandboxLost, SandboxSpec


@check()
async def a_timed_out_command_keeps_its_output_so_far(sandbox: Sandbox) -> None:
    result = await run_into_timeout(
        sandbox, "echo late >&2; echo early; sleep 1000; echo never", ready=b"early"
    )
    assert (result.stdout, result.stderr) == (b"early\n", b"late\n")


@check()
async def a_timed_out_command_dies_with_its_children(sandbox: Sandbox) -> None:
    command = (
        "sleep 1001 & (sleep 1001 &) ; setsid sleep 1001 & setsid bash -c 'sleep 1001 & disown' & "
        "echo ready; sleep 1001"
    )
    await run_into_timeout(sandbox, command, ready=b"ready")
    assert (await sandbox.exec(["pgrep", "-f", "sleep 1001"])).text == ""


@check()
async def a_timed_out_daemon_that_forked_twice_dies_too(sandbox: Sandbox) -> None:
    daemon = (
        "import os, signal\n"
        "for s in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT): signal.signal(s, signal.SIG_IGN)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        open('/tmp/daemon', 'w').write(str(os.getpid()))\n"
        "        print('ready', flush=True); signal.pause()\n"
        "    os._exit(0)\n"
        "signal.pause()\n"
    )
    for _ in range(2):  # alone, and beside a process that stays
        await run_into_timeout(sandbox, ["python3", "-c", daemon], ready=b"ready")
        assert (await sandbox.exec("kill -0 $(cat /tmp/daemon)")).exit_code == 1
        await sandbox.exec("sleep 1004 &")
    assert len((await sandbox.exec(["pgrep", "-f", "sleep 1004"])).text.split()) == 2


@check()
async def a_timeout_spares_the_other_commands(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo gate")
    other = asyncio.ensure_future(sandbox.exec("sleep 1002 & cat gate; kill %1; echo spared"))
    assert (await sandbox.exec("sleep 1000", timeout_s=0.3)).timed_out
    await sandbox.exec("echo > gate")
    assert (await other).text.endswith("spared\n")


@check()
async def a_timeout_spares_the_commands_that_began_later(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo gate")
    overlapped = False
    timeout_s = 1.0
    while not overlapped:  # on a busy machine the first may end before the other has begun
        command = "(setsid sleep 1005 &) ; touch begun; sleep 1005"
        first = asyncio.ensure_future(sandbox.exec(command, timeout_s=timeout_s))
        await wait_for_exit_code(sandbox, "test -e begun")
        other = asyncio.ensure_future(sandbox.exec("(setsid sleep 1006 &) ; cat gate; echo spared"))
        await wait_for_exit_code(sandbox, "pgrep -f '^sleep 1006'")
        overlapped = not first.done()
        assert (await first).timed_out
        assert (await sandbox.exec(["pgrep", "-f", "sleep 1005"])).text == ""
        assert len((await sandbox.exec(["pgrep", "-f", "^sleep 1006"])).text.split()) == 1
        await sandbox.exec("echo > gate; rm begun; pkill -f '^sleep 1006'")
        assert (await other).text.endswith("spared\n")
        timeout_s *= 2


@check()
async def background_processes_neither_hold_up_the_result_nor_die(sandbox: Sandbox) -> None:
    result = await sandbox.exec("(while :; do echo noise; sleep 0.05; done) & echo $! >&2", timeout_s=100)
    assert not result.timed_out
    assert (await sandbox.exec(f"kill -0 {result.stderr.decode()}")).exit_code == 0


@check()
async def a_cancelled_command_dies(sandbox: Sandbox) -> None:
    running = asyncio.ensure_future(sandbox.exec("sleep 1003 & echo > started; sleep 1003"))
    await wait_for_exit_code(sandbox, "test -e started")
    running.cancel()
    await asyncio.wait([running])
    assert running.cancelled()
    await wait_for_exit_code(sandbox, "pgrep -f 'sleep 100[3]'", exit_code=1)
    await assert_usable(sandbox)


@check()
async def a_timeout_must_be_positive_and_a_command_not_empty(sandbox: Sandbox) -> None:
    for command, timeout_s in (("true", 0), ("true", -1.0), ([], 1.0)):
        with pytest.raises(ValueError):  # noqa: PT011
            await sandbox.exec(command, timeout_s=timeout_s)


async def _assert_lost(sandbox: Sandbox) -> None:
    for attempt in (sandbox.exec("true"), sandbox.read("/etc/passwd"), sandbox.write("x", b"")):
        with pytest.raises(SandboxLost):
            await attempt


@check()
async def closing_repeatedly_is_safe_and_nothing_runs_after(provider: Provider) -> None:
    sandbox = await start(provider)
    await sandbox.exec("sleep 1000 &")
    await asyncio.gather(*(sandbox.close() for _ in range(5)))
    await sandbox.close()
    await _assert_lost(sandbox)


@check()
async def closing_during_a_command_makes_it_raise(provider: Provider) -> None:
    sandbox = await start(provider)
    running = asyncio.ensure_future(sandbox.exec("echo > started; sleep 1000", timeout_s=1000))
    await wait_for_exit_code(sandbox, "test -e started")
    await sandbox.close()
    await asyncio.wait([running])
    assert isinstance(running.exception(), SandboxLost)


@check()
async def an_error_in_its_block_closes_the_sandbox(provider: Provider) -> None:
    sandbox = await start(provider)
    with pytest.raises(KeyError):
        async with sandbox:
            raise KeyError("x")
    await _assert_lost(sandbox)


@check()
async def killing_all_processes_leaves_it_usable_or_lost(sandbox: Sandbox) -> None:
    try:
        assert (await sandbox.exec("kill -9 -1; kill -9 1; kill -9 $$")).exit_code == 137
        await assert_usable(sandbox)
    except SandboxLost:
        await _assert_lost(sandbox)


@check()
async def removing_all_files_does_not_hang_it(sandbox: Sandbox) -> None:
    try:
        await sandbox.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout_s=1.5)
        await sandbox.exec("true", timeout_s=10)
    except SandboxLost:
        await _assert_lost(sandbox)


@check()
async def sandboxes_do_not_share_anything(provider: Provider) -> None:
    async with await start(provider) as one, await start(provider) as two:
        await one.exec("echo secret | tee /tmp/x /dev/shm/x /testbed/x /usr/local/x; sleep 1004 &")
        seen = await two.exec("ls /tmp /dev/shm /testbed; cat /usr/local/x; pgrep -f 'sleep 100[4]'")
        assert b"x" not in seen.stdout
        assert seen.exit_code != 0
        await one.close()
        await assert_usable(two)


@check()
async def an_image_that_cannot_be_served_is_refused_for_good(provider: Provider) -> None:
    with pytest.raises(ProviderUnavailable, match="no-such-scheme://x") as refused:
        await provider.start(SandboxSpec(image="no-such-scheme://x"))
    assert not refused.value.retryable


@check()
async def a_command_that_stops_itself_is_killed_by_its_timeout(sandbox: Sandbox) -> None:
    result = await run_into_timeout(sandbox, "echo before; kill -STOP $$; echo never", ready=b"before")
    assert result.stdout == b"before\n"
    await assert_usable(sandbox)


@check()
async def a_cancelled_start_leaves_the_provider_usable(provider: Provider) -> None:
    for delay_s in (0.0, 0.002, 0.01, 0.02):  # to cancel it in different phases
        starting = asyncio.ensure_future(start(provider))
        await asyncio.sleep(delay_s)
        starting.cancel()
        try:
            await (await starting).close()
        except asyncio.CancelledError:
            continue
    async with await start(provider) as sandbox:
        await assert_usable(sandbox)


@check()
async def many_sandboxes_start_at_once(provider: Provider) -> None:
    async def visit(number: int) -> str:
        async with await start(provider) as sandbox:
            await sandbox.write("number", str(number).encode())
            return (await sandbox.exec("cat number")).text

    assert await asyncio.gather(*(visit(number) for number in range(24))) == [str(n) for n in range(24)]


@check()
async def processes_in_the_background_serve_later_commands(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo ask tell; (read -r word < ask; echo got $word > tell) > log 2>&1 &")
    assert (await sandbox.exec("echo hello > ask; cat tell")).text == "got hello\n"


@check(Limits(pids=64))
async def orphans_are_reaped(sandbox: Sandbox) -> None:
    for _ in range(3):
        spawned = await sandbox.exec("for i in $(seq 100); do (setsid true &); done")
        assert spawned.exit_code == 0
    await wait_for_exit_code(sandbox, "grep -q '^State:.Z' /proc/[0-9]*/status", exit_code=1)
    await assert_usable(sandbox)


@check(Limits(output_kib=4))
async def a_flood_of_output_ends_with_its_timeout(sandbox: Sandbox) -> None:
    result = await run_into_timeout(sandbox, "yes", ready=b"y\n" * 2048)
    assert result.stdout == b"y\n" * 2048
    assert result.stdout_bytes >= 4096
    await assert_usable(sandbox)


@check()
async def unread_input_does_not_outlast_its_timeout(sandbox: Sandbox) -> None:
    await run_into_timeout(sandbox, "sleep 1000", stdin=b"x" * (8 << 20))
    assert (await sandbox.exec("cat", stdin=b"next")).text == "next"


@check()
async def a_cancelled_write_leaves_the_sandbox_usable(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * (16 << 12)
    for delay_s in (0.0, 0.005, 0.02):  # to cancel it in different phases
        writing = asyncio.ensure_future(sandbox.write("big", data))
        await asyncio.sleep(delay_s)
        writing.cancel()
        await asyncio.wait([writing])
    await sandbox.write("big", data)
    assert await sandbox.read("big") == data
