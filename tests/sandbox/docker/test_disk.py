"""The disk watchdog stops sandboxes above their limit and no others."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from hone.sandbox import Limits, Sandbox, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.conformance.suite import wait_for_exit_code
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox

LIMITS = Limits(disk_mib=32)
# 96 MiB in all: less than what ends a sandbox, however late the watchdog scans; then wait for the kill
FILL = "for i in $(seq 12); do head -c 8M /dev/zero > fill$i; done; sleep 1000"


def _inside(settings: SandboxSettings, scenario: Callable[[Sandbox, Sandbox], Awaitable[None]]) -> None:
    """Run a scenario in the first of two sandboxes; the second must not be killed."""

    async def run() -> None:
        async with make_provider(settings) as provider:
            spec = SandboxSpec(limits=LIMITS)
            async with await provider.start(spec) as busy, await provider.start(spec) as idle:
                wait = "until [ -e done ]; do sleep 0.1; done; echo rested"
                waiting = asyncio.ensure_future(idle.exec(wait, timeout_s=280))
                await scenario(busy, idle)
                await idle.write("done", b"")
                assert (await waiting).text == "rested\n"

    asyncio.run(run())


def test_writer_above_the_limit_is_killed_and_its_sandbox_lives(settings: SandboxSettings) -> None:
    async def scenario(busy: Sandbox, idle: Sandbox) -> None:
        result = await busy.exec(FILL, timeout_s=250)
        assert (result.exit_code, result.timed_out) == (137, False)
        for command in ("rm -f fill* && sleep 1", "sleep 1"):  # again, if a scan of the earlier size kills it
            await wait_for_exit_code(busy, command)

    _inside(settings, scenario)


def test_background_writer_is_killed(settings: SandboxSettings) -> None:
    async def scenario(busy: Sandbox, idle: Sandbox) -> None:
        await busy.exec(f"setsid bash -c '{FILL}' >/dev/null 2>&1 &")
        await wait_for_exit_code(busy, "pgrep -f fil[l]", exit_code=1)

    _inside(settings, scenario)


@pytest.mark.full
def test_writer_far_above_the_limit_loses_its_sandbox(settings: SandboxSettings) -> None:
    async def scenario(busy: Sandbox, idle: Sandbox) -> None:
        async def write_on() -> None:
            for number in range(100):
                await busy.exec(f"head -c 20M /dev/zero > more{number}; sleep 0.5")

        with pytest.raises(SandboxLost, match="more than 4 times its 32 MiB"):
            await write_on()

    _inside(settings, scenario)


@pytest.mark.full
def test_initial_layer_does_not_count(settings: SandboxSettings, tmp_path: Path) -> None:
    for number in range(4):
        (tmp_path / "layer" / str(number)).mkdir(parents=True)
        (tmp_path / "layer" / str(number) / "big").write_bytes(bytes(16 << 20))

    async def run() -> None:
        async with make_provider(settings) as provider:
            spec = SandboxSpec(limits=LIMITS, layer=tmp_path / "layer")
            async with await provider.start(spec) as sandbox:
                write = "head -c 20M /dev/zero > more; sleep 2; echo rested"  # makes the watchdog look
                assert (await sandbox.exec(write)).text == "rested\n"
                filled = await sandbox.exec(FILL, timeout_s=250)
                assert (filled.exit_code, filled.timed_out) == (137, False)

    asyncio.run(run())


@pytest.mark.full
def test_too_many_empty_files_are_stopped(settings: SandboxSettings) -> None:
    async def scenario(busy: Sandbox, idle: Sandbox) -> None:
        make = "import os, time\nfor i in range(20_000): open(f'e{i}', 'w').close()\ntime.sleep(1000)"
        result = await busy.exec(["python3", "-c", make], timeout_s=250)
        assert (result.exit_code, result.timed_out) == (137, False)

    _inside(settings, scenario)


def test_tmp_and_shm_are_limited_without_a_kill(settings: SandboxSettings) -> None:
    async def scenario(busy: Sandbox, idle: Sandbox) -> None:
        for folder in ("/tmp", "/dev/shm"):
            command = f"cd {folder}; for i in 1 2 3; do head -c 20M /dev/zero > f$i || break; done; rm f*"
            result = await busy.exec(command)
            assert b"No space left" in result.stderr
            assert result.exit_code == 0

    _inside(settings, scenario)
