"""After close, crash or kill -9 an engine holds nothing of a sandbox; what others own stays."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox import ProviderUnavailable, Sandbox, SandboxSpec, make_provider, owners
from hone.sandbox.docker.engine import Engine as EngineClient
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.docker.looking import containers, volumes
from tests.sandbox.owner import owner_process
from tests.services.engines import Engine
from tests.services.image import BASE_IMAGE
from tests.waiting import wait_until

pytestmark = pytest.mark.sandbox


@contextlib.contextmanager
def held_at(call: str, *, before: bool) -> Iterator[tuple[asyncio.Event, asyncio.Event]]:
    """Hold the calls of an engine client's method, before or after the engine does it.

    Yields two events: the first is set once a call is held, the second lets them continue.
    """
    held, released = asyncio.Event(), asyncio.Event()
    original = getattr(EngineClient, call)

    async def hold(*arguments: Any) -> Any:
        result = None if before else await original(*arguments)
        held.set()
        await released.wait()
        return await original(*arguments) if before else result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(EngineClient, call, hold)
        yield held, released


@pytest.fixture
def owner(settings: SandboxSettings) -> Iterator[subprocess.Popen[bytes]]:
    with owner_process(settings, 2) as process:
        yield process


def test_closed_provider_leaves_nothing(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            sandboxes = [await provider.start(SandboxSpec(run="r1")) for _ in range(3)]
            for sandbox in sandboxes:
                await sandbox.exec("setsid sleep 1000 & trap '' TERM HUP; (sleep 1000 &)")
            assert len(containers(engine)) == 3
            await sandboxes[0].close()
            assert len(containers(engine)) == 2
            await sandboxes[1].exec("true")

    asyncio.run(run())
    assert containers(engine) == {}
    assert volumes(engine) == []
    assert settings.state_dir is not None
    assert list(settings.state_dir.iterdir()) == []


def test_unclosed_sandboxes_end_with_the_provider(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(3)))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        asyncio.run(run())
    assert containers(engine) == {}


def test_cancelled_start_leaves_nothing(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            for call, before in itertools.product(("create", "attach", "start"), (True, False)):
                with held_at(call, before=before) as (held, released):
                    start = asyncio.ensure_future(provider.start(SandboxSpec()))
                    await held.wait()
                    start.cancel()
                    released.set()  # a creation that was requested may still happen
                    await asyncio.wait([start])
                assert start.cancelled(), call
                assert containers(engine) == {}, call
            async with await provider.start(SandboxSpec()) as sandbox:
                assert (await sandbox.exec("true")).exit_code == 0

    asyncio.run(run())
    assert containers(engine) == {}


def test_start_timeout_leaves_nothing(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> None:
        async with make_provider(settings.model_copy(update={"start_timeout_s": 0.03})) as provider:
            refused = pytest.raises(ProviderUnavailable, match="not ready within")
            with held_at("start", before=True), refused as refusal:
                await provider.start(SandboxSpec())
            assert refusal.value.retryable
            assert containers(engine) == {}

    asyncio.run(run())


def test_close_waits_for_starts_in_progress(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> list[object]:
        async with make_provider(settings) as provider:
            with held_at("create", before=False) as (held, released):
                starts = [asyncio.ensure_future(provider.start(SandboxSpec())) for _ in range(8)]
                await held.wait()
                released.set()
        return await asyncio.gather(*starts, return_exceptions=True)

    ended = asyncio.run(run())
    assert all(isinstance(one, (Sandbox, ProviderUnavailable)) for one in ended), ended
    assert containers(engine) == {}


def test_killed_owner_loses_its_containers(engine: Engine, owner: subprocess.Popen[bytes]) -> None:
    assert {one["Config"]["Labels"]["hone.run"] for one in containers(engine).values()} == {"killed-run"}
    owner.kill()
    owner.wait()
    wait_until(lambda: containers(engine) == {})


def test_next_provider_removes_containers_of_dead_owners(settings: SandboxSettings, engine: Engine) -> None:
    """Containers that were made and never started do not end by themselves."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
        dead = f"{Path('/proc/self/ns/pid').stat().st_ino}-{process.pid}-1-00000000"
    boot = owners.boot_id()
    strangers = {
        "of-a-dead-owner": {"hone.owner": dead, "hone.boot": boot},
        "of-another-machine": {"hone.owner": dead, "hone.boot": "elsewhere"},
        "of-an-owner-of-another-kind": {"hone.owner": "someone", "hone.boot": boot},
        "of-nobody": {},
    }
    with engine.client() as client:
        for name, labels in strangers.items():
            config = {"Image": BASE_IMAGE, "Cmd": ["sleep", "1000"], "Labels": labels}
            assert client.post(f"/containers/create?name={name}", json=config).is_success
        # It counts what dead owners of other tests have left on this machine, too.
        assert asyncio.run(make_provider(settings).reconcile()) >= 1
        assert set(containers(engine)) == {f"/{name}" for name in strangers if name != "of-a-dead-owner"}
        for name in strangers:
            client.delete(f"/containers/{name}?force=1")


@pytest.mark.full
def test_reconcile_keeps_resources_of_live_owners(
    settings: SandboxSettings, engine: Engine, owner: subprocess.Popen[bytes]
) -> None:
    before = {name: one["State"]["Pid"] for name, one in containers(engine).items()}

    async def run() -> None:
        async with make_provider(settings) as provider, await provider.start(SandboxSpec()):
            await provider.reconcile()

    asyncio.run(run())
    assert {name: one["State"]["Pid"] for name, one in containers(engine).items()} == before
    assert len(before) == 2
    owner.kill()
    owner.wait()
    wait_until(lambda: containers(engine) == {})
