"""After close, crash or kill -9 nothing of a sandbox is left."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import ModuleType

import pytest

from hone.sandbox import ProviderUnavailable, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.namespaces import host, server
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.owner import owner_process
from tests.sandbox.traces import held_mount_namespaces, traces, used_mount_namespaces
from tests.waiting import HeldFunction, wait_until

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
    with owner_process(settings, 3) as process:
        yield process


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


@pytest.mark.parametrize(("module", "name"), [(host, "build_etc"), (server.subprocess, "Popen")])
def test_cancelled_opening_leaves_nothing(
    module: ModuleType, name: str, settings: SandboxSettings, state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = HeldFunction(monkeypatch, module, name)

    async def run() -> None:
        opening = asyncio.ensure_future(make_provider(settings).__aenter__())
        await held.begun()
        opening.cancel()
        await asyncio.sleep(0)  # the cancellation arrives while the thread works
        held.release()
        await asyncio.wait([opening])
        assert opening.cancelled()
        await held.ended()

    asyncio.run(run())
    assert traces(os.getpid(), state) == []


def test_closed_provider_leaves_nothing(settings: SandboxSettings, state: Path) -> None:
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


def test_killed_owner_loses_its_sandboxes(
    settings: SandboxSettings, state: Path, owner: subprocess.Popen[bytes]
) -> None:
    assert len(traces(owner.pid, state)) >= 8
    owner.kill()
    owner.wait()
    wait_until(lambda: not any(line.startswith("process") for line in traces(owner.pid, state)))

    async def run() -> None:
        async with make_provider(settings):
            assert traces(owner.pid, state) == []

    asyncio.run(run())


def test_next_provider_removes_resources_of_a_killed_owner(
    settings: SandboxSettings, state: Path, owner: subprocess.Popen[bytes]
) -> None:
    os.kill(_spawner_of(owner.pid), signal.SIGSTOP)  # so that it cannot clean up
    owner.kill()
    owner.wait()
    assert traces(owner.pid, state) != []
    # Its directory at least: any provider that opens on this machine meanwhile may be quicker with the rest.
    assert asyncio.run(make_provider(settings).reconcile()) >= 1
    assert traces(owner.pid, state) == []


def test_reconcile_keeps_resources_of_live_owners(
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

    wait_until(settled)

    async def run() -> None:
        async with make_provider(settings) as provider, await provider.start(SandboxSpec()):
            await provider.reconcile()

    asyncio.run(run())
    wait_until(lambda: named() == before)


def test_killed_spawn_server_leaves_nothing(settings: SandboxSettings, state: Path) -> None:
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
def test_cancelled_close_leaves_nothing(settings: SandboxSettings, state: Path, after_s: float) -> None:
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


def test_cancelled_start_leaves_nothing(settings: SandboxSettings, state: Path) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            for turns in range(12):
                start = asyncio.ensure_future(provider.start(SandboxSpec()))
                for _ in range(turns):
                    await asyncio.sleep(0)
                start.cancel()
                await asyncio.wait([start])
                if not start.cancelled():  # it was quicker
                    await start.result().close()
            async with await provider.start(SandboxSpec()) as sandbox:
                assert (await sandbox.exec("true")).exit_code == 0
            assert [line for line in traces(os.getpid(), state) if "hone-sandbox" in line] == []

    asyncio.run(run())
    assert traces(os.getpid(), state) == []


def test_unclosed_sandboxes_end_with_the_provider(settings: SandboxSettings, state: Path) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(6)))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        asyncio.run(run())
    assert traces(os.getpid(), state) == []
