"""What every provider has to pass: one check per promise of the contract, each named as a sentence.

    for check in CHECKS:
        await check(provider)      # raises AssertionError, or whatever the provider raised

A check starts its own sandboxes through the open provider it is given and closes them. Checks need `bash`,
`git`, `python3` with pytest and the core utilities in image `host`.
"""

from __future__ import annotations

import asyncio
import os
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

from hone.sandbox.contract import (
    Limits,
    Mount,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
)

Check = Callable[[Provider], Awaitable[None]]
CHECKS: list[Check] = []


def _check(function: Check) -> Check:
    CHECKS.append(function)
    return function


async def _new(provider: Provider, limits: Limits | None = None) -> Sandbox:
    return await provider.start(SandboxSpec(limits=limits or Limits()))


async def _until(sandbox: Sandbox, command: str, wanted: int = 0) -> None:
    """Repeat a command until it exits with `wanted`; fail after 20 s."""
    deadline = time.monotonic() + 20
    while (result := await sandbox.exec(command)).exit_code != wanted:
        assert time.monotonic() < deadline, f"{command!r} still gives {result}"


# --- commands


@_check
async def a_shell_command_runs_in_bash(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        result = await sandbox.exec("x=(1 2 3); echo ${#x[@]}; echo oops >&2")
    assert (result.exit_code, result.stdout, result.stderr) == (0, b"3\n", b"oops\n")
    assert (result.stdout_bytes, result.stderr_bytes, result.timed_out) == (2 + 0, 5, False)


@_check
async def an_argument_list_reaches_the_program_unchanged(provider: Provider) -> None:
    words = ["a b", "$HOME", "*", "", "quote\"'", "line\nbreak", "--flag", "é"]
    async with await _new(provider) as sandbox:
        result = await sandbox.exec(["printf", "%s\\0", *words])
    assert result.stdout.decode().split("\0")[:-1] == words


@_check
async def a_failing_command_returns_its_exit_code(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        for code in (1, 2, 77, 255):
            assert (await sandbox.exec(f"exit {code}")).exit_code == code


@_check
async def a_command_killed_by_a_signal_exits_with_128_plus_its_number(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        assert (await sandbox.exec("kill -TERM $$")).exit_code == 143
        assert (await sandbox.exec(["bash", "-c", "kill -KILL $$"])).exit_code == 137


@_check
async def a_missing_program_is_exit_code_127_with_a_reason(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        result = await sandbox.exec(["no-such-program"])
    assert result.exit_code == 127
    assert b"no-such-program" in result.stderr


@_check
async def standard_input_is_delivered_and_then_ends(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        assert (await sandbox.exec("cat", stdin=b"one\0two\xff")).stdout == b"one\0two\xff"
        assert (await sandbox.exec("cat")).stdout == b""


@_check
async def a_patch_of_twelve_megabytes_goes_through_standard_input(provider: Provider) -> None:
    data = bytes(range(256)) * (12 << 12)
    async with await _new(provider) as sandbox:
        result = await sandbox.exec("wc -c", stdin=data)
    assert int(result.stdout) == len(data) == 12 << 20


@_check
async def commands_start_in_workdir_unless_told_otherwise(provider: Provider) -> None:
    async with await provider.start(SandboxSpec(workdir="/srv/project")) as sandbox:
        assert (await sandbox.exec("pwd")).text == "/srv/project\n"
        assert (await sandbox.exec("pwd", cwd="/tmp")).text == "/tmp\n"  # noqa: S108
        missing = await sandbox.exec("pwd", cwd="/nowhere")
    assert missing.exit_code == 126
    assert b"/nowhere" in missing.stderr


@_check
async def the_environment_holds_path_home_lang_and_what_was_given(provider: Provider) -> None:
    async with await provider.start(SandboxSpec(env={"SPEC": "1", "BOTH": "spec"})) as sandbox:
        result = await sandbox.exec(["env", "-0"], env={"CALL": "x=y\nz", "BOTH": "call"})
    seen = dict(item.split("=", 1) for item in result.text.split("\0")[:-1])
    assert sorted(seen) == ["BOTH", "CALL", "HOME", "LANG", "PATH", "SPEC"]
    assert (seen["SPEC"], seen["BOTH"], seen["CALL"]) == ("1", "call", "x=y\nz")


@_check
async def merged_streams_keep_their_order(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        result = await sandbox.exec("echo 1; echo 2 >&2; echo 3", merge_stderr=True)
    assert (result.stdout, result.stderr) == (b"1\n2\n3\n", b"")


@_check
async def output_may_be_any_bytes(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        result = await sandbox.exec(["printf", "\\377\\000\\376"])
    assert result.stdout == b"\xff\x00\xfe"
    assert result.text == "\ufffd\0\ufffd"


@_check
async def long_output_keeps_head_and_tail_and_counts_all(provider: Provider) -> None:
    async with await _new(provider, Limits(output_kib=4)) as sandbox:
        result = await sandbox.exec("seq 1 300000; seq 1 300000 >&2")
    whole = "".join(f"{n}\n" for n in range(1, 300001)).encode()
    for stream, total in ((result.stdout, result.stdout_bytes), (result.stderr, result.stderr_bytes)):
        assert total == len(whole)
        assert stream == whole[:2048] + whole[-2048:]


@_check
async def output_within_the_cap_is_whole(provider: Provider) -> None:
    async with await _new(provider, Limits(output_kib=4)) as sandbox:
        for size in (2047, 2048, 2049, 4096):
            assert len((await sandbox.exec(f"head -c {size} /dev/zero")).stdout) == size
        over = await sandbox.exec("head -c 4097 /dev/zero")
    assert (len(over.stdout), over.stdout_bytes) == (4096, 4097)


@_check
async def a_flood_of_output_does_not_fill_memory(provider: Provider) -> None:
    async with await _new(provider, Limits(memory_mib=128)) as sandbox:
        result = await sandbox.exec("head -c 1000000000 /dev/zero", timeout_s=120)
    assert result.stdout_bytes == 1_000_000_000
    assert len(result.stdout) <= 256 << 10


@_check
async def commands_run_concurrently_in_one_sandbox(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        await sandbox.exec("mkfifo a b")
        one = sandbox.exec("echo ping > a; cat b")
        two = sandbox.exec("cat a; echo pong > b")
        many = [sandbox.exec(f"echo {n}") for n in range(20)]
        results = await asyncio.gather(one, two, *many)
    assert [r.text.strip() for r in results] == ["pong", "ping", *map(str, range(20))]


# --- the end of commands


@_check
async def a_timed_out_command_keeps_its_output_so_far(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        result = await sandbox.exec("echo early; echo late >&2; sleep 1000; echo never", timeout_s=0.5)
    assert (result.timed_out, result.exit_code) == (True, -1)
    assert (result.stdout, result.stderr) == (b"early\n", b"late\n")
    assert result.seconds >= 0.5


@_check
async def a_timed_out_command_dies_with_its_children(provider: Provider) -> None:
    command = (
        "sleep 1001 & (sleep 1001 &) ; setsid sleep 1001 & setsid bash -c 'sleep 1001 & disown' & sleep 1001"
    )
    async with await _new(provider) as sandbox:
        assert (await sandbox.exec(command, timeout_s=0.5)).timed_out
        assert (await sandbox.exec(["pgrep", "-f", "sleep 1001"])).text == ""


@_check
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
    async with await _new(provider) as sandbox:
        running = asyncio.ensure_future(sandbox.exec(["python3", "-c", daemon], timeout_s=2))
        await _until(sandbox, "test -s /tmp/daemon && kill -0 $(cat /tmp/daemon)")
        assert (await running).timed_out
        assert (await sandbox.exec("kill -0 $(cat /tmp/daemon)")).exit_code == 1


@_check
async def a_timeout_spares_the_other_commands(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        await sandbox.exec("mkfifo gate")
        other = asyncio.ensure_future(sandbox.exec("sleep 1002 & cat gate; kill %1; echo spared"))
        assert (await sandbox.exec("sleep 1000", timeout_s=0.3)).timed_out
        await sandbox.exec("echo > gate")
        assert (await other).text.endswith("spared\n")


@_check
async def background_processes_neither_hold_up_the_result_nor_die(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        started = time.monotonic()
        result = await sandbox.exec("(while :; do echo noise; sleep 0.05; done) & echo $! >&2", timeout_s=100)
        assert time.monotonic() - started < 50
        pid = result.stderr.decode()
        assert (await sandbox.exec(f"sleep 0.2; kill -0 {pid}")).exit_code == 0


@_check
async def a_cancelled_command_dies(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        running = asyncio.ensure_future(sandbox.exec("sleep 1003 & echo > started; sleep 1003"))
        await _until(sandbox, "test -e started")
        running.cancel()
        await asyncio.wait([running])
        assert running.cancelled()
        await _until(sandbox, "pgrep -f 'sleep 100[3]'", wanted=1)
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@_check
async def a_timeout_must_be_positive_and_a_command_not_empty(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        for command, timeout_s in (("true", 0), ("true", -1.0), ([], 1.0)):
            try:
                await sandbox.exec(command, timeout_s=timeout_s)
            except ValueError:
                continue
            raise AssertionError(f"accepted {command!r} with {timeout_s}")


# --- the end of sandboxes


async def _is_lost(sandbox: Sandbox) -> None:
    for attempt in (sandbox.exec("true"), sandbox.read("/etc/passwd"), sandbox.write("x", b"")):
        try:
            await attempt
        except SandboxLost:
            continue
        raise AssertionError("a lost sandbox answered")


@_check
async def closing_twice_is_safe_and_nothing_runs_after(provider: Provider) -> None:
    sandbox = await _new(provider)
    await sandbox.close()
    await sandbox.close()
    await _is_lost(sandbox)


@_check
async def closing_during_a_command_makes_it_raise(provider: Provider) -> None:
    sandbox = await _new(provider)
    running = asyncio.ensure_future(sandbox.exec("echo > started; sleep 1000", timeout_s=1000))
    await _until(sandbox, "test -e started")
    await sandbox.close()
    await asyncio.wait([running])
    assert isinstance(running.exception(), SandboxLost)


@_check
async def killing_everything_inside_leaves_it_usable_or_lost(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        try:
            assert (await sandbox.exec("kill -9 -1; kill -9 1; kill -9 $$")).exit_code == 137
            assert (await sandbox.exec("echo alive")).text == "alive\n"
        except SandboxLost:
            await _is_lost(sandbox)


@_check
async def removing_everything_inside_does_not_hang_it(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        try:
            await sandbox.exec("rm -rf --no-preserve-root / 2>/dev/null", timeout_s=1.5)
            await sandbox.exec("true", timeout_s=10)
        except SandboxLost:
            await _is_lost(sandbox)


@_check
async def sandboxes_do_not_share_anything(provider: Provider) -> None:
    async with await _new(provider) as one, await _new(provider) as two:
        await one.exec("echo secret | tee /tmp/x /dev/shm/x /testbed/x /usr/local/x; sleep 1004 &")
        seen = await two.exec("ls /tmp /dev/shm /testbed; cat /usr/local/x; pgrep -f 'sleep 100[4]'")
        assert b"x" not in seen.stdout
        assert seen.exit_code != 0
        await one.close()
        assert (await two.exec("echo alive")).text == "alive\n"


@_check
async def an_image_that_cannot_be_served_is_refused_for_good(provider: Provider) -> None:
    try:
        await provider.start(SandboxSpec(image="no-such-scheme:x"))
    except ProviderUnavailable as error:
        refusal = error
    else:
        raise AssertionError("an unknown image started")
    assert not refusal.retryable
    assert "no-such-scheme:x" in str(refusal)


# --- files


@_check
async def files_are_written_and_read_as_bytes(provider: Provider) -> None:
    data = bytes(range(256))
    async with await _new(provider) as sandbox:
        await sandbox.write("deep/er/file.bin", data, mode=0o755)
        assert await sandbox.read("/testbed/deep/er/file.bin") == data
        assert (await sandbox.exec("stat -c %a deep/er/file.bin")).text == "755\n"
        await sandbox.write("deep/er/file.bin", b"")
        assert await sandbox.read("deep/er/file.bin") == b""


@_check
async def files_over_ten_megabytes_pass_both_ways(provider: Provider) -> None:
    data = bytes(range(251)) * 60_000
    async with await _new(provider) as sandbox:
        await sandbox.write("big", data)
        assert await sandbox.read("big") == data


@_check
async def reading_what_is_not_a_file_raises(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        await sandbox.exec("mkfifo pipe")
        wrong: tuple[tuple[str, type[Exception]], ...] = (
            ("missing", FileNotFoundError),
            ("/tmp", IsADirectoryError),  # noqa: S108
            ("pipe", OSError),
            ("/dev/zero", OSError),
            ("null\0byte", OSError),
        )
        for path, kind in wrong:
            try:
                await sandbox.read(path)
            except kind:
                continue
            raise AssertionError(f"{path} was read")


@_check
async def trees_travel_in_and_out(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "source", Path(folder) / "target"
        (source / "sub" / "empty").mkdir(parents=True)
        (source / "sub" / "run.sh").write_bytes(b"#!/bin/sh\necho ran\n")
        (source / "sub" / "run.sh").chmod(0o755)
        (source / "link").symlink_to("sub/run.sh")
        async with await _new(provider) as sandbox:
            await sandbox.upload(source, "tree")
            assert (await sandbox.exec("./tree/link")).text == "ran\n"
            await sandbox.exec("echo more > tree/sub/more")
            await sandbox.download("tree", target)
            await sandbox.download("tree/sub/more", Path(folder) / "one")
        found = sorted(str(path.relative_to(target)) for path in target.rglob("*"))
        assert found == ["link", "sub", "sub/empty", "sub/more", "sub/run.sh"]
        assert (target / "link").readlink() == Path("sub/run.sh")
        assert (target / "sub" / "run.sh").stat().st_mode & 0o777 == 0o755
        assert (Path(folder) / "one").read_bytes() == b"more\n"


@_check
async def a_download_refuses_links_that_leave_the_tree(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        async with await _new(provider) as sandbox:
            for number, link in enumerate(("/etc/passwd", "../../x", "sub/../../x")):
                await sandbox.exec(f"mkdir -p t{number}/sub && ln -s {link} t{number}/out")
                try:
                    await sandbox.download(f"t{number}", Path(folder) / str(number))
                except SandboxError:
                    assert not (Path(folder) / str(number) / "out").is_symlink()
                    continue
                raise AssertionError(f"a link to {link} came out")


@_check
async def a_layer_is_the_workdirs_content_and_stays_unwritten(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer"
        (layer / "pkg").mkdir(parents=True)
        (layer / "pkg" / "a.py").write_text("a = 1\n")
        (layer / "private").write_text("mine\n")
        (layer / "private").chmod(0o600)
        async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
            assert (await sandbox.exec("cat pkg/a.py private")).text == "a = 1\nmine\n"
            changes = "echo 'a = 2' > pkg/a.py && echo new > pkg/b.py && rm private && touch pkg/a.py"
            assert (await sandbox.exec(changes)).exit_code == 0
            assert (await sandbox.exec("rm -r pkg && mkdir pkg && ls pkg")).text == ""
        assert (layer / "pkg" / "a.py").read_text() == "a = 1\n"
        assert sorted(path.name for path in layer.rglob("*")) == ["a.py", "pkg", "private"]
        async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
            assert (await sandbox.exec("cat pkg/a.py")).text == "a = 1\n"


@_check
async def git_works_in_a_layer(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        layer = Path(folder) / "layer"
        layer.mkdir()
        identity = "-c user.name=a -c user.email=a@b"
        async with await _new(provider) as sandbox:
            setup = f"git init -q && echo one > f && git add . && git {identity} commit -qm one"
            assert (await sandbox.exec(setup)).exit_code == 0
            layer.rmdir()
            await sandbox.download("/testbed", layer)
        async with await provider.start(SandboxSpec(layer=layer)) as sandbox:
            result = await sandbox.exec("echo two > f; git diff --stat; git stash -q; git status --short")
        assert "f | 2 +-" in result.text, result
        assert result.stderr == b"" or b"Please tell me who you are" in result.stderr


@_check
async def mounts_are_visible_and_read_only(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "data").write_text("shared\n")
        one = Mount(source=Path(folder), target="/mnt/all")
        two = Mount(source=Path(folder) / "data", target="/testbed/data.txt")
        async with await provider.start(SandboxSpec(mounts=(one, two))) as sandbox:
            assert (await sandbox.exec("cat /mnt/all/data data.txt")).text == "shared\nshared\n"
            for command in (
                "echo > /mnt/all/new",
                "echo > /mnt/all/data",
                "echo > data.txt",
                "rm /mnt/all/data",
            ):
                assert (await sandbox.exec(command)).exit_code != 0, command
        assert (Path(folder) / "data").read_text() == "shared\n"


def _exists_on_host(path: str) -> bool:
    return Path(path).exists()


@_check
async def system_directories_can_be_written_and_the_writes_vanish(provider: Provider) -> None:
    paths = ("/usr/local/bin/hone-probe", "/usr/bin/hone-probe", "/etc/hone-probe", "/opt/hone-probe")
    async with await _new(provider) as sandbox:
        for path in paths:
            assert (await sandbox.exec(["touch", path])).exit_code == 0, path
    async with await _new(provider) as sandbox:
        for path in paths:
            assert (await sandbox.exec(["test", "-e", path])).exit_code == 1, path
            assert not _exists_on_host(path)


@_check
async def python_and_pytest_are_there(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        await sandbox.write("test_x.py", b"def test_x():\n    assert 1 + 1 == 2\n")
        for command in ("python3 -m pytest -q", "python -m pytest -q", "pytest -q"):
            result = await sandbox.exec(command)
            assert result.exit_code == 0, result
            assert "1 passed" in result.text


# --- isolation and limits


@_check
async def there_is_no_network(provider: Provider) -> None:
    probe = (
        "import socket\n"
        "for address in (('1.1.1.1', 53), ('192.168.0.1', 80), ('10.0.0.1', 80)):\n"
        "    s = socket.socket(); s.settimeout(3)\n"
        "    try: s.connect(address); print('reached', address)\n"
        "    except OSError: pass\n"
        "print([n for _, n in socket.if_nameindex()])\n"
    )
    async with await _new(provider) as sandbox:
        assert (await sandbox.exec(["python3", "-c", probe])).text == "['lo']\n"
        assert (await sandbox.exec("getent hosts example.com")).exit_code != 0


@_check
async def loopback_serves_inside(provider: Provider) -> None:
    probe = (
        "import socket\n"
        "a = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname()); b.sendall(b'hi')\n"
        "print(a.accept()[0].recv(2))\n"
    )
    async with await _new(provider) as sandbox:
        assert (await sandbox.exec(["python3", "-c", probe])).text == "b'hi'\n"


@_check
async def host_files_and_secrets_are_not_visible(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as folder:
        secret = Path(folder) / "secret"
        secret.write_text("s3cret")
        secret.chmod(0o644)
        async with await _new(provider) as sandbox:
            profile = os.environ.get("HOME", "/root") + "/.bashrc"
            for path in (str(secret), profile, "/etc/shadow", "/etc/sudoers"):
                assert (await sandbox.exec(["test", "-e", path])).exit_code == 1, path
            assert (await sandbox.exec("ls -A /root /home /mnt /media /srv /boot 2>/dev/null")).text == (
                "/home:\nagent\n\n/media:\n\n/mnt:\n\n/root:\n\n/srv:\n"
            )


@_check
async def only_its_own_processes_are_visible(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        pids = (await sandbox.exec("cd /proc && echo [0-9]*")).text.split()
    assert "1" in pids
    assert len(pids) <= 4


@_check
async def commands_have_no_privileges(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        status = (await sandbox.exec("cat /proc/self/status; id -u")).text
    assert not status.endswith("\n0\n")
    for line in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{line}:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status


@_check
async def a_memory_hog_dies_and_the_sandbox_lives(provider: Provider) -> None:
    hog = "x = []\nwhile True: x.append(b'x' * (1 << 20))"
    async with await _new(provider, Limits(memory_mib=96)) as sandbox:
        result = await sandbox.exec(["python3", "-c", hog], timeout_s=60)
        assert not result.timed_out
        assert result.exit_code != 0
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@_check
async def memory_is_limited_for_all_processes_together(provider: Provider) -> None:
    hog = "x = b'x' * (40 << 20); open('/tmp/up', 'a').write('1'); import time; time.sleep(1000)"
    async with await _new(provider, Limits(memory_mib=128, cpus=2)) as sandbox:
        for _ in range(6):
            await sandbox.exec(f'python3 -c "{hog}" >/dev/null 2>&1 &')
        await _until(sandbox, "test $(wc -c < /tmp/up) -ge 3 && test $(pgrep -fc 'x = [b]') -le 3")
        assert (await sandbox.exec("echo alive")).text == "alive\n"


@_check
async def a_fork_bomb_is_held(provider: Provider) -> None:
    async with await _new(provider, Limits(pids=40)) as sandbox:
        bomb = await sandbox.exec("b() { b | b & }; b; sleep 1000", timeout_s=2)
        assert bomb.timed_out
        assert "hone" not in bomb.text
        await _until(sandbox, "echo alive")


@_check
async def no_more_processes_than_allowed_exist(provider: Provider) -> None:
    grow = (
        "import os, signal\n"
        "n = 0\n"
        "try:\n"
        "    while os.fork(): n += 1\n"
        "    signal.pause()\n"
        "except OSError: print(n)\n"
        "os.kill(0, signal.SIGKILL)\n"
    )
    async with await _new(provider, Limits(pids=20)) as sandbox:
        result = await sandbox.exec(["python3", "-u", "-c", grow], timeout_s=20)
    assert 10 <= int(result.text) < 20


@_check
async def a_disk_filler_meets_the_end_of_its_disk(provider: Provider) -> None:
    async with await _new(provider, Limits(disk_mib=16)) as sandbox:
        for folder in ("testbed", "tmp", "dev/shm", "usr/local", ".", "home/agent"):
            path = f"/{folder}/fill"
            result = await sandbox.exec(f"head -c 40000000 /dev/zero > {path}")
            assert result.exit_code != 0, path
            size = int((await sandbox.exec(["stat", "-c", "%s", path])).text)
            assert size <= 16 << 20
            assert (await sandbox.exec(["rm", path])).exit_code == 0
        assert (await sandbox.exec("i=0; while : > f$i; do i=$((i+1)); done")).exit_code == 0


@_check
async def what_is_enforced_is_reported(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        held = dict(sandbox.enforced)
    assert {"memory", "pids", "cpus", "disk", "output", "network", "isolation"} <= set(held)
    assert all(held.values())


@_check
async def health_is_probed_for_real(provider: Provider) -> None:
    health = await provider.health()
    assert health.ok, [check for check in health.checks if not check.ok]


@_check
async def reconciling_spares_what_lives(provider: Provider) -> None:
    async with await _new(provider) as sandbox:
        await provider.reconcile()
        assert (await sandbox.exec("echo alive")).text == "alive\n"
