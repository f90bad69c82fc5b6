"""Commands: their arguments, streams, environment and output."""

from __future__ import annotations

import asyncio

from hone.sandbox.conformance.registry import check, new
from hone.sandbox.contract import (
    Limits,
    Provider,
    SandboxSpec,
)


@check
async def a_shell_command_runs_in_bash(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec("x=(1 2 3); echo ${#x[@]}; echo oops >&2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"3\n", b"oops\n")
    assert (result.stdout_bytes, result.stderr_bytes, result.timed_out) == (2 + 0, 5, False)


@check
async def an_argument_list_reaches_the_program_unchanged(provider: Provider) -> None:
    words = ["a b", "$HOME", "*", "", "quote\"'", "line\nbreak", "--flag", "é"]
    async with await new(provider) as sandbox:
        result = await sandbox.exec(["printf", "%s\\0", *words])
    assert result.stdout.decode().split("\0")[:-1] == words


@check
async def a_failing_command_returns_its_exit_code(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        for code in (1, 2, 77, 255):
            assert (await sandbox.exec(f"exit {code}")).exit_code == code


@check
async def a_command_killed_by_a_signal_exits_with_128_plus_its_number(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        assert (await sandbox.exec("kill -TERM $$")).exit_code == 143
        assert (await sandbox.exec(["bash", "-c", "kill -KILL $$"])).exit_code == 137


@check
async def a_missing_program_is_exit_code_127_with_a_reason(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec(["no-such-program"])
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


@check
async def standard_input_is_delivered_and_then_ends(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        assert (await sandbox.exec("cat", stdin=b"one\0two\xff")).stdout == b"one\0two\xff"
        assert (await sandbox.exec("cat")).stdout == b""


@check
async def a_patch_of_twelve_megabytes_goes_through_standard_input(provider: Provider) -> None:
    data = bytes(range(256)) * (12 << 12)
    async with await new(provider) as sandbox:
        result = await sandbox.exec("wc -c", stdin=data)
    assert int(result.stdout) == len(data) == 12 << 20


@check
async def commands_start_in_workdir_unless_told_otherwise(provider: Provider) -> None:
    async with await provider.start(SandboxSpec(workdir="/srv/project")) as sandbox:
        assert (await sandbox.exec("pwd")).text == "/srv/project\n"
        assert (await sandbox.exec("pwd", cwd="/tmp")).text == "/tmp\n"  # noqa: S108
        missing = await sandbox.exec("pwd", cwd="/nowhere")
    assert missing.exit_code == 126
    assert b"/nowhere" in missing.stderr


@check
async def the_environment_holds_path_home_lang_and_what_was_given(provider: Provider) -> None:
    async with await provider.start(SandboxSpec(env={"SPEC": "1", "BOTH": "spec"})) as sandbox:
        result = await sandbox.exec(["env", "-0"], env={"CALL": "x=y\nz", "BOTH": "call"})
    seen = dict(item.split("=", 1) for item in result.text.split("\0")[:-1])
    assert sorted(seen) == ["BOTH", "CALL", "HOME", "LANG", "PATH", "SPEC"]
    assert (seen["SPEC"], seen["BOTH"], seen["CALL"]) == ("1", "call", "x=y\nz")


@check
async def merged_streams_keep_their_order(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_stderr=True)
    assert (result.stdout, result.stderr) == (b"1\n2\n3\n", b"")


@check
async def output_may_be_any_bytes(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        result = await sandbox.exec(["printf", "\\377\\000\\376"])
    assert result.stdout == b"\xff\x00\xfe"
    assert result.text == "\ufffd\0\ufffd"


@check
async def long_output_keeps_head_and_tail_and_counts_all(provider: Provider) -> None:
    async with await new(provider, Limits(output_kib=4)) as sandbox:
        result = await sandbox.exec("seq 1 300000; seq 1 300000 >&2")
    whole = "".join(f"{n}\n" for n in range(1, 300001)).encode()
    for stream, total in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
        assert total == len(whole)
        assert stream == whole[:2048] + whole[-2048:]


@check
async def output_within_the_cap_is_whole(provider: Provider) -> None:
    async with await new(provider, Limits(output_kib=4)) as sandbox:
        for size in (2047, 2048, 2049, 4096):
            assert len((await sandbox.exec(f"head -c {size} /dev/zero")).stdout) == size
        over = await sandbox.exec("head -c 4097 /dev/zero")
    assert (len(over.stdout), over.stdout_bytes) == (4096, 4097)


@check
async def a_flood_of_output_does_not_fill_memory(provider: Provider) -> None:
    async with await new(provider, Limits(memory_mib=128)) as sandbox:
        result = await sandbox.exec("head -c 1000000000 /dev/zero", timeout_s=120)
    assert result.stdout_bytes == 1_000_000_000
    assert len(result.stdout) <= 256 << 10


@check
async def commands_run_concurrently_in_one_sandbox(provider: Provider) -> None:
    async with await new(provider) as sandbox:
        await sandbox.exec("mkfifo a b")
        one = sandbox.exec("echo ping > a; cat b")
        two = sandbox.exec("cat a; echo pong > b")
        many = [sandbox.exec(f"echo {n}") for n in range(20)]
        results = await asyncio.gather(one, two, *many)
    assert [r.text.strip() for r in results] == ["pong", "ping", *map(str, range(20))]
