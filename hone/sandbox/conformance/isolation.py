"""Isolation and limits for hostile code."""

from __future__ import annotations

import contextlib
import os
import tempfile
from pathlib import Path

from hone.sandbox.conformance.suite import assert_usable, check, start, wait_for_exit_code
from hone.sandbox.contract import Limits, Provider, Sandbox, SandboxLost


@check()
async def there_is_no_network(sandbox: Sandbox) -> None:
    probe = (
        "import socket\n"
        "for address in (('1.1.1.1', 53), ('192.168.0.1', 80), ('10.0.0.1', 80)):\n"
        "    s = socket.socket(); s.settimeout(3)\n"
        "    try: s.connect(address); print('reached', address)\n"
        "    except OSError: pass\n"
        "print([n for _, n in socket.if_nameindex()])\n"
    )
    assert (await sandbox.exec(["python3", "-c", probe])).text == "['lo']\n"
    assert (await sandbox.exec("getent hosts example.com")).exit_code != 0


@check()
async def loopback_serves_inside(sandbox: Sandbox) -> None:
    probe = (
        "import socket\n"
        "a = socket.create_server(('127.0.0.1', 0))\n"
        "b = socket.create_connection(a.getsockname()); b.sendall(b'hi')\n"
        "print(a.accept()[0].recv(2))\n"
    )
    assert (await sandbox.exec(["python3", "-c", probe])).text == "b'hi'\n"


@check()
async def the_hosts_files_are_not_visible(provider: Provider) -> None:
    with tempfile.TemporaryDirectory() as shared, tempfile.TemporaryDirectory(dir=Path.home()) as private:
        for folder in (Path(shared), Path(private)):
            folder.chmod(0o755)
            (folder / "secret").write_text("s3cret")
        async with await start(provider) as sandbox:
            for path in (shared, f"{shared}/secret", private, f"{private}/secret"):
                assert (await sandbox.exec(["test", "-e", path])).exit_code == 1, path


@check()
async def the_hosts_environment_is_not_visible(provider: Provider) -> None:
    os.environ["HONE_CONFORMANCE_PROBE"] = "s3cret"
    try:
        async with await start(provider) as sandbox:
            seen = await sandbox.exec("env -0; cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline")
    finally:
        del os.environ["HONE_CONFORMANCE_PROBE"]
    assert b"PATH=" in seen.stdout
    assert b"s3cret" not in seen.stdout


@check()
async def no_open_file_of_the_host_is_inherited(sandbox: Sandbox) -> None:
    probe = "import os; print(sorted(os.listdir('/proc/self/fd')))"  # 3 is the listing itself
    assert (await sandbox.exec(["python3", "-c", probe])).text == "['0', '1', '2', '3']\n"


@check()
async def settings_of_the_system_cannot_be_changed(sandbox: Sandbox) -> None:
    settings = ("/proc/sys/kernel/core_pattern", "/proc/sys/vm/overcommit_memory", "/proc/sysrq-trigger")
    for path in settings:
        assert (await sandbox.exec(f"cat {path} > value; cat value > {path}")).exit_code != 0, path


@check()
async def only_its_own_processes_are_visible(sandbox: Sandbox) -> None:
    pids = (await sandbox.exec("cd /proc && echo [0-9]*")).text.split()
    assert "1" in pids
    assert len(pids) <= 4


@check()
async def commands_have_no_privileges(sandbox: Sandbox) -> None:
    status = (await sandbox.exec("cat /proc/self/status")).text
    for line in ("CapPrm", "CapEff", "CapBnd", "CapAmb"):
        assert f"{line}:\t0000000000000000\n" in status
    assert "NoNewPrivs:\t1\n" in status


@check(Limits(memory_mib=96))
async def a_command_that_exceeds_memory_dies_alone(sandbox: Sandbox) -> None:
    hog = "x = []\nwhile True: x.append(b'x' * (1 << 20))"
    result = await sandbox.exec(["python3", "-c", hog], timeout_s=60)
    assert not result.timed_out
    assert result.exit_code != 0
    await assert_usable(sandbox)


@check(Limits(memory_mib=128, cpus=2))
async def memory_is_limited_for_all_processes_together(sandbox: Sandbox) -> None:
    hog = "open('/tmp/begun', 'a').write('1'); x = b'x' * (40 << 20); import time; time.sleep(1000)"
    for _ in range(6):
        await sandbox.exec(f'python3 -c "{hog}" >/dev/null 2>&1 &')
    await wait_for_exit_code(sandbox, "test $(wc -c < /tmp/begun) -eq 6 && test $(pgrep -fc 'x = [b]') -le 3")
    await assert_usable(sandbox)


@check(Limits(pids=40))
async def a_fork_bomb_is_contained(sandbox: Sandbox) -> None:
    bomb = await sandbox.exec("sleep 1000 & b() { b | b & }; b; wait %1", timeout_s=2)
    assert bomb.timed_out
    assert "hone" not in bomb.text
    await wait_for_exit_code(sandbox, "echo alive")


@check(Limits(pids=20))
async def no_more_processes_than_allowed_exist(sandbox: Sandbox) -> None:
    grow = (
        "import os, signal\n"
        "n = 0\n"
        "try:\n"
        "    while os.fork(): n += 1\n"
        "    signal.pause()\n"
        "except OSError: print(n)\n"
        "os.kill(0, signal.SIGKILL)\n"
    )
    result = await sandbox.exec(["python3", "-u", "-c", grow], timeout_s=20)
    assert 10 <= int(result.text) < 20


@check(Limits(disk_mib=16))
async def disk_space_is_limited(sandbox: Sandbox) -> None:
    for folder in ("testbed", "tmp", "dev/shm", "usr/local", ".", "opt"):
        path = f"/{folder}/fill"
        result = await sandbox.exec(f"head -c 40000000 /dev/zero > {path}")
        assert result.exit_code != 0, path
        size = int((await sandbox.exec(["stat", "-c", "%s", path])).text)
        assert size <= 16 << 20
        assert (await sandbox.exec(["rm", path])).exit_code == 0


@check()
async def empty_files_are_limited(provider: Provider) -> None:
    async with await start(provider, Limits(disk_mib=16)) as sandbox:
        with contextlib.suppress(SandboxLost):  # a watchdog may end all of it
            result = await sandbox.exec("i=0; while : > f$i; do i=$((i+1)); done", timeout_s=120)
            assert not result.timed_out
            assert int((await sandbox.exec("ls -U | wc -l")).stdout) < 100_000
    async with await start(provider) as another:
        await assert_usable(another)


@check()
async def enforced_limits_are_reported(sandbox: Sandbox) -> None:
    held = dict(sandbox.enforced)
    assert {"memory", "pids", "cpus", "disk", "output", "network", "isolation"} <= set(held)
    assert all(held.values())


@check()
async def health_is_good(provider: Provider) -> None:
    health = await provider.health()
    assert health.ok, [check for check in health.checks if not check.ok]


@check()
async def reconciling_keeps_live_sandboxes(provider: Provider) -> None:
    async with await start(provider) as sandbox:
        await provider.reconcile()
        await assert_usable(sandbox)
