"""After close, crash or kill -9 an engine holds nothing of a sandbox; what others own stays."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import ProviderUnavailable, Sandbox, SandboxSpec, make_provider, owners
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.docker.looking import containers, until, volumes
from tests.services.engines import Engine
from tests.services.image import BASE_IMAGE

pytestmark = pytest.mark.sandbox


@pytest.fixture
def owner(settings: SandboxSettings) -> Iterator[subprocess.Popen[bytes]]:
    """Another process with two busy sandboxes."""
    command = [sys.executable, "-m", "tests.sandbox.docker.owner", settings.model_dump_json(), "2"]
    root = Path(__file__).parents[3]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=root) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        yield process
        process.kill()


def test_a_closed_provider_leaves_nothing(settings: SandboxSettings, engine: Engine) -> None:
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


def test_sandboxes_that_are_forgotten_end_with_the_provider(
    settings: SandboxSettings, engine: Engine
) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            await asyncio.gather(*(provider.start(SandboxSpec()) for _ in range(3)))
            raise RuntimeError("on purpose")

    with pytest.raises(RuntimeError, match="on purpose"):
        asyncio.run(run())
    assert containers(engine) == {}


def test_a_start_that_is_cancelled_leaves_nothing(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider:
            for pause in (0, 0.005, 0.02, 0.05, 0.1, 0.2):  # seconds, to meet it in different stages
                start = asyncio.ensure_future(provider.start(SandboxSpec()))
                await asyncio.sleep(pause)
                start.cancel()
                await asyncio.wait([start])
                if not start.cancelled():
                    await start.result().close()
                assert containers(engine) == {}
            async with await provider.start(SandboxSpec()) as sandbox:
                assert (await sandbox.exec("true")).exit_code == 0

    asyncio.run(run())
    assert containers(engine) == {}


def test_a_start_that_takes_too_long_is_given_up_and_leaves_nothing(
    settings: SandboxSettings, engine: Engine
) -> None:
    async def run() -> None:
        async with make_provider(settings.model_copy(update={"start_timeout_s": 0.03})) as provider:
            with pytest.raises(ProviderUnavailable, match="not ready within") as refusal:
                await provider.start(SandboxSpec())
            assert refusal.value.retryable
            assert containers(engine) == {}

    asyncio.run(run())


def test_a_provider_that_closes_waits_for_its_starts(settings: SandboxSettings, engine: Engine) -> None:
    async def run() -> list[object]:
        async with make_provider(settings) as provider:
            starts = [asyncio.ensure_future(provider.start(SandboxSpec())) for _ in range(8)]
            await asyncio.sleep(0.1)
        return await asyncio.gather(*starts, return_exceptions=True)

    ended = asyncio.run(run())
    assert all(isinstance(one, (Sandbox, ProviderUnavailable)) for one in ended), ended
    assert containers(engine) == {}


def test_an_owner_killed_with_9_takes_its_containers_along(
    engine: Engine, owner: subprocess.Popen[bytes]
) -> None:
    assert {one["Config"]["Labels"]["hone.run"] for one in containers(engine).values()} == {"killed-run"}
    owner.kill()
    owner.wait()
    until(lambda: containers(engine) == {})


def test_the_next_provider_removes_what_a_dead_owner_left(settings: SandboxSettings, engine: Engine) -> None:
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


def test_reconciling_touches_nothing_of_a_living_owner(
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
    until(lambda: containers(engine) == {})
