"""After close, crash or kill -9 nothing of a sandbox is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hone.sandbox import ProviderUnavailable, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.traces import held_mount_namespaces, traces, used_mount_namespaces

pytestmark = pytest.mark.sandbox


@pytest.fixture
def state(tmp_path: Path) -> Path:
    (tmp_path / "state").mkdir(mode=0o700)
    return tmp_path / "state"


@pytest.fixture
def settings(state: Path, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    return SandboxSettings(state_dir=state, cache_dir=tmp_path_factory.getbasetemp() / "cache")


@pytest.fixture
def owner(settings: SandboxSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with three busy sandboxes."""
    script = Path(__file__).with_name("owner.py")
    command = [sys.executable, str(script), str(settings.state_dir), str(settings.cache_dir), "3"]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def _until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline, "nothing changed within 20 s"
        time.sleep(0.01)


def _spawner_of(pid: int) -> int:
    """The spawn server among the children of a process."""
    children = [
        child
        for task in Path(f"/proc/{pid}/task").iterdir()
        for child in (task / "children").read_text().split()
    ]
    return next(
        int(child) for child in children if b"hone-spawner" in Path(f"/proc/{child}/cmdline").read_bytes()
    )


def test_a_closed_provider_leaves_nothing(settings: SandboxSettings, state: Path) -> None:
    async def run(held: ExitStack) -> set[int]:
        async with make_provider(settings) as provider:
            sandboxes = [await provider.start(SandboxSpec()) for _ in range(4)]
            for sandbox in sandboxes:
                await sandbox.exec("setsid sleep 1000 & trap '' TERM HUP; (sleep 1000 &)")
            during = traces(os.getpid(), state)
            assert len([line for line in during if line.startswith("process")]) >= 9
            assert len([line for line in during if line.startswith("directory")]) == 1
            pids = [line.split()[1] for line in during if "hone-sandbox" in line]
            used = held.enter_context(held_mount_namespaces(pids))
            assert len(used) >= 4
            assert used <= used_mount_namespaces()
            await sandboxes[0].close()
            assert not any("/s1\0" in line for line in traces(os.getpid(), state))
            await sandboxes[1].exec("true")
            return used

    with ExitStack() as held:
        used = asyncio.run(run(held))
        assert traces(os.getpid(), state) == []
        assert not used & used_mount_namespaces()


def test_an_owner_killed_with_9_takes_its_sandboxes_along(
    settings: SandboxSettings, state: Path, owner: subprocess.Popen[bytes]
) -> None:
    assert len(traces(owner.pid, state)) >= 8
    owner.kill()
    owner.wait()
    _until(lambda: not any(line.startswith("process") for line in traces(owner.pid, state)))

    async def run() -> None:
        async with make_provider(settings):
            assert traces(owner.pid, state) == []

    asyncio.run(run())


def test_the_next_provider_removes_what_a_killed_owner_and_its_killed_server_left(
    settings: SandboxSettings, state: Path, owner: subprocess.Popen[bytes]
) -> None:
    os.kill(_spawner_of(owner.pid), signal.SIGSTOP)  # so that it cannot clean up
    owner.kill()
    owner.wait()
    assert traces(owner.pid, state) != []
    # Its directory at least: any provider that opens on this machine meanwhile may be quicker with the rest.
    assert asyncio.run(make_provider(settings).reconcile()) >= 1
    assert traces(owner.pid, state) == []


def test_reconciling_touches_nothing_of_a_living_owner(
    settings: SandboxSettings, state: Path, owner: subprocess.Popen[bytes]
) -> None:
    def named() -> set[str]:
        return {line for line in traces(owner.pid, state) if "hone-" in line or "process" not in line}

    # two for each sandbox: what has the label beside them is a command between fork and exec
    before: set[str] = set()

    def settled() -> bool:
        before.clear()
        before.update(named())
        return len([line for line in before if "hone-sandbox" in line]) == 6

    _until(settled)

    async def run() -> None:
        async with make_provider(settings) as provider, await provider.start(SandboxSpec()):
            await provider.reconcile()

    asyncio.run(run())
    _until(lambda: named() == before)


def test_a_killed_spawn_server_loses_the_sandboxes_and_leaves_nothing(
    settings: SandboxSettings, state: Path
) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            sandbox = await provider.start(SandboxSpec())
            running = asyncio.ensure_future(sandbox.exec("sleep 1000", timeout_s=1000))
            os.kill(_spawner_of(os.getpid()), signal.SIGKILL)
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(ProviderUnavailable):
                await provider.start(SandboxSpec())
            await sandbox.close()

    asyncio.run(run())
    assert traces(os.getpid(), state) == []


@pytest.mark.parametrize("after_s", [0.0, 0.002, 0.01, 0.03])
def test_a_provider_whose_closing_is_cancelled_leaves_nothing(
    settings: SandboxSettings, state: Path, after_s: float
) -> None:
    async def run() -> None:
        provider = make_provider(settings)
        await provider.__aenter__()
        await provider.start(SandboxSpec())
        closing = asyncio.ensure_future(provider.__aexit__(None, None, None))
        await asyncio.wait([closing], timeout=after_s)
        closing.cancel()
        await asyncio.wait([closing])
        assert traces(os.getpid(), state) == []

    asyncio.run(run())


def test_a_start_that_is_cancelled_leaves_nothing(settings: SandboxSettings, state: Path) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            for turns in range(12):
                start = asyncio.ensure_future(provider.start(SandboxSpec()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                start.cancel()
                await asyncio.wait([start])
            async with await provider.start(SandboxSpec()) as sandbox:
                assert (await sandbox.exec("true")).exit_code == 0
            assert [line for line in traces(os.getpid(), state) if "hone-sandbox" in line] == []

    asyncio.run(run())
    assert traces(os.getpid(), state) == []


def test_sandboxes_that_are_forgotten_end_with_the_provider(settings: SandboxSettings, state: Path) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(6)))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        asyncio.run(run())
    assert traces(os.getpid(), state) == []
