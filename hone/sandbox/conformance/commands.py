"""Commands: their arguments, streams, environment and output."""

from __future__ import annotations

import asyncio
import os

from hone.sandbox.conformance.suite import assert_usable, check, start, wait_for_exit_code
from hone.sandbox.contract import Limits, Provider, Sandbox, SandboxSpec


@check()
async def a_shell_command_runs_in_bash(sandbox: Sandbox) -> None:
    result = await sandbox.exec("x=(1 2 3); echo ${#x[@]}; echo oops >&2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"3\n", b"oops\n")
    assert (result.stdout_bytes, result.stderr_bytes, result.timed_out) == (2 + 0, 5, False)


@check()
async def an_argument_list_reaches_the_program_unchanged(sandbox: Sandbox) -> None:
    words = ["a b", "$HOME", "*", "", "quote\"'", "line\nbreak", "--flag", "é"]
    result = await sandbox.exec(["printf", "%s\\0", *words])
    assert result.stdout.decode().split("\0")[:-1] == words


@check()
async def a_failing_command_returns_its_exit_code(sandbox: Sandbox) -> None:
    for code in (1, 2, 77, 255):
        assert (await sandbox.exec(f"exit {code}")).exit_code == code


@check()
async def a_command_killed_by_signal_n_exits_with_128_plus_n(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("kill -TERM $$")).exit_code == 143
    assert (await sandbox.exec(["bash", "-c", "kill -KILL $$"])).exit_code == 137


@check()
async def a_missing_program_is_exit_code_127_with_a_reason(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["no-such-program"])
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


@check()
async def standard_input_is_delivered_and_then_ends(sandbox: Sandbox) -> None:
    assert (await sandbox.exec("cat", stdin=b"one\0two\xff")).stdout == b"one\0two\xff"
    assert (await sandbox.exec("cat")).stdout == b""


@check()
async def commands_start_in_workdir_unless_told_otherwise(provider: Provider) -> None:
    async with await provider.start(SandboxSpec(workdir="/srv/project")) as sandbox:
        assert (await sandbox.exec("pwd")).text == "/srv/project\n"
        assert (await sandbox.exec("pwd", cwd="/tmp")).text == "/tmp\n"  # noqa: S108
        missing = await sandbox.exec("pwd", cwd="/nowhere")
        assert (missing.exit_code, missing.stdout) == (126, b"")
        assert b"/nowhere" in missing.stderr
        await assert_usable(sandbox)


@check()
async def the_environment_holds_path_home_and_what_was_given(provider: Provider) -> None:
    async def names(spec: SandboxSpec, env: dict[str, str]) -> dict[str, str]:
        async with await provider.start(spec) as sandbox:
            result = await sandbox.exec(["env", "-0"], env=env)
        return dict(item.split("=", 1) for item in result.text.split("\0")[:-1])

    own = await names(SandboxSpec(), {})  # the image's
    assert {"HOME", "PATH"} <= set(own)
    given = SandboxSpec(env={"SPEC": "1", "BOTH": "spec"})
    call = {"CALL": "x=y\nz", "BOTH": "call", "EMPTY": "", "ODD": "é ' \" $HOME \\"}
    assert await names(given, call) == own | {"SPEC": "1"} | call


@check()
async def merged_streams_keep_their_order(sandbox: Sandbox) -> None:
    result = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_stderr=True)
    assert (result.stdout, result.stderr) == (b"1\n2\n3\n", b"")


@check()
async def output_may_be_any_bytes(sandbox: Sandbox) -> None:
    result = await sandbox.exec(["printf", "\\377\\000\\376"])
    assert result.stdout == b"\xff\x00\xfe"
    assert result.text == "\ufffd\0\ufffd"


@check(Limits(output_kib=4))
async def long_output_keeps_head_and_tail_and_counts_all(sandbox: Sandbox) -> None:
    for size in (2047, 2048, 2049, 4096):
        assert len((await sandbox.exec(f"head -c {size} /dev/zero")).stdout) == size
    over = await sandbox.exec("head -c 4097 /dev/zero")
    assert (len(over.stdout), over.stdout_bytes) == (4096, 4097)
    result = await sandbox.exec("seq 1 300000; seq 1 300000 >&2")
    whole = "".join(f"{n}\n" for n in range(1, 300001)).encode()
    for stream, total in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
        assert total == len(whole)
        assert stream == whole[:2048] + whole[-2048:]


@check(Limits(memory_mib=128))
async def a_flood_of_output_does_not_fill_memory(sandbox: Sandbox) -> None:
    result = await sandbox.exec("head -c 500000000 /dev/zero", timeout_s=120)
    assert result.stdout_bytes == 500_000_000
    assert len(result.stdout) <= 256 << 10


@check(Limits(pids=512, memory_mib=1024))
async def commands_run_concurrently_in_one_sandbox(sandbox: Sandbox) -> None:
    await sandbox.exec("mkfifo a b")
    one = sandbox.exec("echo ping > a; cat b")
    two = sandbox.exec("cat a; echo pong > b")
    many = [sandbox.exec(["printf", "%s", str(n)]) for n in range(100)]
    results = await asyncio.gather(one, two, *many)
    assert [r.text.strip() for r in results] == ["pong", "ping", *map(str, range(100))]


@check()
async def unread_input_does_not_hold_up_a_command(sandbox: Sandbox) -> None:
    result = await sandbox.exec("exec 0<&-; echo done", stdin=b"x" * (2 << 20))
    assert (result.exit_code, result.stdout) == (0, b"done\n")


@check()
async def an_argument_that_is_too_long_fails_the_command_alone(sandbox: Sandbox) -> None:
    fits = await sandbox.exec(["bash", "-c", "echo ${#1}", "bash", "x" * 100_000])
    assert fits.text == "100000\n"
    result = await sandbox.exec(["echo", "x" * (1 << 20)])
    assert result.exit_code != 0
    assert result.stderr
    await assert_usable(sandbox)


@check()
async def a_command_is_waited_for_after_it_closed_its_output(sandbox: Sandbox) -> None:
    wait = "until [ -e go ]; do sleep 0.01; done"
    running = asyncio.ensure_future(sandbox.exec(f"exec >&- 2>&-; touch closed; {wait}; exit 5"))
    await wait_for_exit_code(sandbox, "test -e closed")
    assert not running.done()
    await sandbox.write("go", b"")
    assert (await running).exit_code == 5


@check()
async def output_is_reported_as_it_arrives(sandbox: Sandbox) -> None:
    pieces: list[tuple[str, bytes]] = []
    arrived = asyncio.Event()

    def listen(stream: str, data: bytes) -> None:
        pieces.append((stream, data))
        arrived.set()

    command = "echo begun; until [ -e go ]; do sleep 0.01; done; echo wrong >&2; exit 3"
    async with asyncio.timeout(60), asyncio.TaskGroup() as group:
        running = group.create_task(sandbox.exec(command, on_output=listen))
        await arrived.wait()  # while the command still runs: it waits for the file
        await sandbox.write("go", b"")
    result = running.result()
    assert (result.exit_code, result.stdout, result.stderr) == (3, b"begun\n", b"wrong\n")
    assert pieces == [("stdout", b"begun\n"), ("stderr", b"wrong\n")]


@check(Limits(output_kib=4))
async def a_listener_receives_all_of_a_long_output(sandbox: Sandbox) -> None:
    received = 0

    def listen(stream: str, data: bytes) -> None:
        nonlocal received
        received += len(data)

    result = await sandbox.exec("head -c 30000000 /dev/zero", on_output=listen)
    assert received == result.stdout_bytes == 30_000_000
    assert len(result.stdout) == 4096


@check()
async def input_and_output_flow_at_the_same_time(sandbox: Sandbox) -> None:
    data = bytes(range(256)) * (8 << 12)
    result = await sandbox.exec("cat", stdin=data)
    half = 128 << 10
    assert result.stdout_bytes == len(data) == 8 << 20
    assert result.stdout == data[:half] + data[-half:]


@check(Limits(output_kib=4))
async def merged_output_is_capped_as_one_stream(sandbox: Sandbox) -> None:
    command = "echo first >&2; seq 1 20000; seq 1 20000 >&2; echo last"
    result = await sandbox.exec(command, merge_stderr=True)
    assert len(result.stdout) == 4096
    assert result.stdout.startswith(b"first\n")
    assert result.stdout.endswith(b"last\n")
    assert (result.stdout_bytes, result.stderr_bytes) == (2 * 108_894 + 11, 0)


@check()
async def there_is_no_terminal(sandbox: Sandbox) -> None:
    result = await sandbox.exec("test -t 0 || test -t 1 || test -t 2 || (exec 3<>/dev/tty)")
    assert result.exit_code != 0


@check()
async def a_program_that_is_not_executable_is_exit_code_126(sandbox: Sandbox) -> None:
    await sandbox.write("plain", b"text")
    for program in ("./plain", "/tmp"):  # noqa: S108
        result = await sandbox.exec([program])
        assert (result.exit_code, result.stdout) == (126, b"")
        assert program.encode() in result.stderr
    await assert_usable(sandbox)


@check()
async def null_bytes_in_commands_are_refused(sandbox: Sandbox) -> None:
    for attempt in (
        sandbox.exec(["echo", "a\0b"]),
        sandbox.exec("echo", env={"NAME": "a\0b"}),
        sandbox.exec("echo", cwd="/a\0b"),
    ):
        try:
            assert (await attempt).exit_code != 0
        except ValueError:
            continue
    await assert_usable(sandbox)


@check()
async def text_that_is_not_unicode_arrives_or_is_refused(sandbox: Sandbox) -> None:
    try:
        result = await sandbox.exec(["printf", "%s", os.fsdecode(b"\xff\xfe")])
        assert result.stdout == b"\xff\xfe"
    except ValueError:
        pass
    await assert_usable(sandbox)


@check()
async def sandboxes_report_their_id_and_workdir(provider: Provider) -> None:
    async with await start(provider) as one, await start(provider) as two:
        assert one.id
        assert one.id != two.id
        assert (await one.exec("pwd")).text == f"{one.spec.workdir}\n"


@check()
async def a_command_with_closed_output_gets_none_of_anothers(sandbox: Sandbox) -> None:
    async with asyncio.TaskGroup() as group:
        wait = "until [ -e begun0 -a -e begun1 -a -e begun2 ]; do sleep 0.01; done"
        closed = group.create_task(sandbox.exec(f"exec >&- 2>&-; touch closed; {wait}"))
        await wait_for_exit_code(sandbox, "test -e closed")
        floods = [f"yes {n} | (head -c 1000000; touch begun{n}; head -c 30000000)" for n in range(3)]
        others = [group.create_task(sandbox.exec(flood)) for flood in floods]
    assert closed.result().stdout_bytes == 0
    assert [other.result().stdout_bytes for other in others] == [31_000_000] * 3
