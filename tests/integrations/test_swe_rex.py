"""SWE-ReX's interface on sandboxes: sessions, commands, files, and what a hostile program in them can do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from swerex.exceptions import (
    BashIncorrectSyntaxError,
    CommandTimeoutError,
    NoExitCodeError,
    NonZeroExitCodeError,
    SessionDoesNotExistError,
    SessionExistsError,
    SessionNotInitializedError,
)
from swerex.runtime.abstract import (
    BashAction,
    BashInterruptAction,
    BashObservation,
    CloseBashSessionRequest,
    Command,
    CreateBashSessionRequest,
    ReadFileRequest,
    UploadRequest,
    WriteFileRequest,
)

from hone.integrations.swe_rex.runtime import HoneRuntime, SandboxFailed
from hone.integrations.swe_rex.terminal import KEPT, OMITTED
from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox

TIMEOUT_S = 60.0
IGNORES_INTERRUPTS = (
    "import signal, time; signal.signal(signal.SIGINT, signal.SIG_IGN); print('ready', flush=True); "
    "time.sleep(1000)"
)


@asynccontextmanager
async def opened(root: Path) -> AsyncGenerator[tuple[HoneRuntime, Sandbox]]:
    settings = SandboxSettings(state_dir=root / "state")
    async with make_provider(settings) as provider, await provider.start(SandboxSpec()) as sandbox:
        runtime = HoneRuntime(sandbox)
        await runtime.create_session(CreateBashSessionRequest())
        yield runtime, sandbox
        await runtime.close()


async def run(runtime: HoneRuntime, command: str, **fields: object) -> BashObservation:
    return await runtime.run_in_session(BashAction(command=command, **{"timeout": TIMEOUT_S, **fields}))


def test_session_keeps_variables_functions_and_directory(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            first = await run(runtime, "export A=3; cd /usr; hi() {\n  echo hi $A\n}\n")
            assert (first.output, first.exit_code) == ("", 0)
            assert (await run(runtime, "hi; pwd; echo $B")).output == "hi 3\n/usr\n\n"
            await runtime.create_session(CreateBashSessionRequest(session="other"))
            assert (await run(runtime, "echo $A", session="other")).output == "\n"
            await runtime.close_session(CloseBashSessionRequest(session="other"))
            assert (await run(runtime, "hi")).output == "hi 3\n"

    asyncio.run(main())


def test_output_is_given_byte_for_byte(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            assert (await run(runtime, "printf '  x'")).output == "  x"
            assert (await run(runtime, "cat <<'EOF'\n\na\n\n\n  é\nEOF")).output == "\na\n\n\n  é\n"
            assert (await run(runtime, "# nothing")).output == ""
            long = "x" * 10_000
            assert (await run(runtime, f"echo {long}\necho 'a\nb'")).output == f"{long}\na\nb\n"

    asyncio.run(main())


def test_exit_codes_follow_the_check_mode(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            assert (await run(runtime, "(exit 3)", check="silent")).exit_code == 3
            assert (await run(runtime, "nope", check="silent")).exit_code == 127
            assert (await run(runtime, "(exit 3)", check="ignore")).exit_code is None
            with pytest.raises(NonZeroExitCodeError, match=r"no luck: .* exit code 3"):
                await run(runtime, "(exit 3)", error_msg="no luck")
            with pytest.raises(NoExitCodeError):
                await run(runtime, "echo half; sleep 1000", expect=["half"])

    asyncio.run(main())


def test_sourced_files_cannot_hide_the_end_of_commands(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, sandbox):
            await sandbox.write("/tmp/rc", b"echo started\nPS1='(env) $ '\nPROMPT_COMMAND='PS1=other'\n")
            request = CreateBashSessionRequest(session="s", startup_source=["/tmp/rc"], startup_timeout=60)
            assert (await runtime.create_session(request)).output == "started\n"
            await run(runtime, "PS1='(venv) '", session="s")
            assert (await run(runtime, "echo a", session="s")).output == "a\n"

    asyncio.run(main())


def test_timeout_leaves_the_program_to_an_interrupt(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            with pytest.raises(CommandTimeoutError):
                await run(runtime, "sleep 1000", timeout=0.1)
            await runtime.run_in_session(BashInterruptAction(timeout=TIMEOUT_S))
            assert (await run(runtime, "echo a")).output == "a\n"

    asyncio.run(main())


def test_interrupt_kills_a_program_that_ignores_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            await run(runtime, "sleep 1001 &")
            await run(runtime, f'python3 -c "{IGNORES_INTERRUPTS}"', expect=["ready"], check="ignore")
            done = await runtime.run_in_session(BashInterruptAction(timeout=0.1, n_retry=2))
            assert "Stopped" in done.output
            assert (await run(runtime, "echo a")).output.startswith("a\n")  # then maybe bash's note
            await run(runtime, "while pgrep -f 'time.sleep[(]1000' > /dev/null; do :; done")
            assert "Stopped" not in (await run(runtime, "jobs -s")).output
            assert "sleep 1001" in (await run(runtime, "jobs -r")).output  # another job

    asyncio.run(main())


def test_interactive_program_is_driven_and_left(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            prompt = {"is_interactive_command": True, "expect": [">>> "]}
            assert (await run(runtime, "python3", **prompt)).expect_string == ">>> "
            assert (await run(runtime, "print('a' * 3)", **prompt)).output == "aaa"
            await run(runtime, "quit()", is_interactive_quit=True)
            assert (await run(runtime, "echo a")).output == "a\n"

    asyncio.run(main())


def test_invalid_syntax_is_refused_before_it_runs(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            with pytest.raises(BashIncorrectSyntaxError) as caught:
                await run(runtime, "touch made\n(a")
            assert "syntax error" in caught.value.extra_info["bash_stderr"]
            await run(runtime, "test ! -e made")

    asyncio.run(main())


def test_commands_never_reach_a_shell_of_the_host(tmp_path: Path) -> None:
    escape = f"touch {tmp_path}/escaped"

    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            await run(runtime, f"mkdir -p {tmp_path}")
            for command in (
                f"echo a\nSOUNIQUEEOF\n{escape}\n",  # ends the here-document of SWE-ReX's own check
                f"$({escape})",
                f"'; {escape}; '",
                f"EOF\n{escape}",
            ):
                await run(runtime, command, check="silent")
                await runtime.execute(Command(command=command, shell=True))
            await run(runtime, f"test -e {tmp_path}/escaped")  # it ran, in the sandbox

    asyncio.run(main())
    assert not (tmp_path / "escaped").exists()


def test_flood_of_output_keeps_head_and_tail(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            done = await run(runtime, "echo head; seq 1 400000; (exit 4)", check="silent")
            assert done.exit_code == 4
            assert done.output.startswith("head\n1\n")
            assert done.output.endswith("\n400000\n")
            assert done.output.count(OMITTED) == 1
            assert len(done.output) <= 2 * KEPT

    asyncio.run(main())


@pytest.mark.parametrize("end", ["exit 3", "kill -9 $$", "kill -9 $PPID"])
def test_ended_shell_ends_its_session_alone(tmp_path: Path, end: str) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            with pytest.raises(SessionNotInitializedError, match="session 'default' is over"):
                await run(runtime, end)
            with pytest.raises(SessionNotInitializedError):
                await run(runtime, "echo a")
            await runtime.close_session(CloseBashSessionRequest())
            await runtime.create_session(CreateBashSessionRequest())
            assert (await run(runtime, "echo a")).output == "a\n"

    asyncio.run(main())


def test_unreadable_input_of_a_session_is_an_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            await run(runtime, "rm -rf /tmp/.session-*")
            with pytest.raises(SessionNotInitializedError, match="takes no input"):
                await run(runtime, "echo a")

    asyncio.run(main())


def test_sessions_are_named_once_and_only_if_open(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            with pytest.raises(SessionExistsError):
                await runtime.create_session(CreateBashSessionRequest())
            with pytest.raises(SessionDoesNotExistError):
                await run(runtime, "echo a", session="other")
            with pytest.raises(SessionDoesNotExistError):
                await runtime.close_session(CloseBashSessionRequest(session="other"))

    asyncio.run(main())


def test_execute_is_like_a_subprocess(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            done = await runtime.execute(Command(command=["printf", "%s", "$A b"]))
            assert (done.stdout, done.stderr, done.exit_code) == ("$A b", "", 0)
            both = Command(command="echo a; echo b >&2; exit 3", shell=True)
            done = await runtime.execute(both)
            assert (done.stdout, done.stderr, done.exit_code) == ("a\n", "b\n", 3)
            merged = await runtime.execute(both.model_copy(update={"merge_output_streams": True}))
            assert (merged.stdout, merged.stderr) == ("a\nb\n", "")
            own = Command(command="echo $A-$HOME; pwd", shell=True, env={"A": "it's x"}, cwd="/usr")
            assert (await runtime.execute(own)).stdout == "it's x-\n/usr\n"
            with pytest.raises(NonZeroExitCodeError):
                await runtime.execute(both.model_copy(update={"check": True}))
            with pytest.raises(CommandTimeoutError):
                await runtime.execute(Command(command=["sleep", "1000"], timeout=0.1))

    asyncio.run(main())


def test_files_are_written_read_and_uploaded(tmp_path: Path) -> None:
    (tmp_path / "tools" / "bin").mkdir(parents=True)
    (tmp_path / "tools" / "bin" / "go").write_text("x")

    async def main() -> None:
        async with opened(tmp_path) as (runtime, sandbox):
            await runtime.write_file(WriteFileRequest(path="/new/a.sh", content="é\r\n"))
            assert (await runtime.read_file(ReadFileRequest(path="/new/a.sh"))).content == "é\n"
            await sandbox.exec("chmod 755 /new/a.sh")
            await runtime.write_file(WriteFileRequest(path="/new/a.sh", content="#!/bin/sh\necho a"))
            assert (await runtime.execute(Command(command=["/new/a.sh"]))).stdout == "a\n"
            with pytest.raises(FileNotFoundError):
                await runtime.read_file(ReadFileRequest(path="/new/none"))
            await sandbox.write("/new/raw", b"\xff")
            with pytest.raises(UnicodeDecodeError):
                await runtime.read_file(ReadFileRequest(path="/new/raw"))
            replaced = ReadFileRequest(path="/new/raw", errors="replace")
            assert (await runtime.read_file(replaced)).content == "\ufffd"
            await runtime.upload(UploadRequest(source_path=f"{tmp_path}/tools", target_path="/srv/tools"))
            assert await sandbox.read("/srv/tools/bin/go") == b"x"

    asyncio.run(main())


def test_lost_sandbox_is_a_fault_of_the_infrastructure(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, sandbox):
            assert await runtime.is_alive()
            waiting = asyncio.ensure_future(run(runtime, "sleep 1000"))
            await asyncio.sleep(0)
            await sandbox.close()
            for attempt in (waiting, run(runtime, "echo a"), runtime.execute(Command(command=["true"]))):
                with pytest.raises(SandboxFailed):
                    await attempt
            assert not await runtime.is_alive()

    asyncio.run(main())


def test_cancelled_action_leaves_the_session_usable(tmp_path: Path) -> None:
    async def main() -> None:
        async with opened(tmp_path) as (runtime, _):
            await run(runtime, "echo half; sleep 1000", expect=["half"], check="ignore")
            waiting = asyncio.ensure_future(runtime.run_in_session(BashInterruptAction(timeout=TIMEOUT_S)))
            waiting.cancel()
            await asyncio.wait([waiting])
            await runtime.run_in_session(BashInterruptAction(timeout=TIMEOUT_S))
            assert (await run(runtime, "echo a")).output == "a\n"

    asyncio.run(main())
