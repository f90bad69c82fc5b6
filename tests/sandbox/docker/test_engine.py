"""An engine that dies, hides, or cannot see this machine; what health tells of one."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from hone.sandbox import ProviderUnavailable, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.docker.conftest import settings_of
from tests.sandbox.docker.looking import containers
from tests.services.engines import Engine, docker_engine
from tests.services.image import base_archive, derive
from tests.services.process import reserve_port, service_folder
from tests.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.sandbox


@pytest.fixture
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.getbasetemp() / "cache"


@pytest.fixture
def mortal() -> Iterator[tuple[Engine, Path]]:
    """Yield an engine of this test alone, and the folder from which it can be started again."""
    with service_folder() as folder, docker_engine(folder) as engine:
        engine.load(base_archive())
        yield engine, folder


def _kill(engine: Engine) -> None:
    """Kill the engine alone; its containerd ends because of that, its containers live on at first."""
    engine.service.process.send_signal(signal.SIGKILL)
    engine.service.process.wait()
    wait_until(lambda: not _containerds(engine))
    # its number may stay taken, by a zombie, where process 1 reaps late: the next one would wait for it
    (engine.service.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)


def _containerds(engine: Engine) -> list[psutil.Process]:
    named = [one for one in psutil.process_iter(["name", "cmdline"]) if one.info["name"] == "containerd"]
    return [one for one in named if str(engine.service.folder) in " ".join(one.info["cmdline"] or ())]


@pytest.mark.full
def test_killed_engine_loses_sandboxes_and_serves_after_restart(
    mortal: tuple[Engine, Path], tmp_path: Path, cache: Path
) -> None:
    engine, folder = mortal

    async def run() -> None:
        async with make_provider(settings_of(engine, tmp_path, cache)) as provider:
            sandbox = await provider.start(SandboxSpec())
            running = asyncio.ensure_future(sandbox.exec("sleep 1000", timeout_s=1000))
            await sandbox.exec("true")
            _kill(engine)
            with pytest.raises(SandboxLost):
                await running
            with pytest.raises(SandboxLost):
                await sandbox.exec("true")
            with pytest.raises(ProviderUnavailable) as refusal:
                await provider.start(SandboxSpec())
            assert refusal.value.retryable
            with pytest.raises(ProviderUnavailable):  # whether anything is left cannot be told
                await sandbox.close()
            revived.enter_context(docker_engine(folder))
            async with await provider.start(SandboxSpec()) as other:
                assert (await other.exec("echo back")).text == "back\n"
            await sandbox.close()
            await wait_until_async(lambda: containers(engine) == {})

    with contextlib.ExitStack() as revived:
        asyncio.run(run())
        assert containers(engine) == {}


@pytest.mark.full
def test_start_fails_in_time_when_the_engine_dies(
    mortal: tuple[Engine, Path], tmp_path: Path, cache: Path
) -> None:
    engine, _ = mortal

    async def run() -> list[object]:
        provider = make_provider(settings_of(engine, tmp_path, cache))
        await provider.__aenter__()
        starts = [asyncio.ensure_future(provider.start(SandboxSpec())) for _ in range(40)]
        await wait_until_async(lambda: containers(engine))
        _kill(engine)  # most of them still wait for their turn
        async with asyncio.timeout(60):
            results = await asyncio.gather(*starts, return_exceptions=True)
        with pytest.raises(ProviderUnavailable):
            await provider.__aexit__(None, None, None)
        return results

    failures = [result for result in asyncio.run(run()) if isinstance(result, Exception)]
    assert failures
    for failure in failures:
        assert isinstance(failure, ProviderUnavailable)
        assert failure.retryable


@pytest.mark.parametrize("url", ["unix:///nowhere/docker.sock", "tcp://127.0.0.1:{port}"])
def test_missing_engine_error_names_its_address(url: str, tmp_path: Path, cache: Path) -> None:
    url = url.format(port=reserve_port())
    settings = SandboxSettings(
        provider="docker", docker_url=url, state_dir=tmp_path / "state", cache_dir=cache
    )

    async def run() -> None:
        with pytest.raises(ProviderUnavailable) as refusal:
            await make_provider(settings).__aenter__()
        assert refusal.value.retryable
        assert url in str(refusal.value)
        health = await make_provider(settings).health()
        assert not health.ok
        assert url in health.checks[0].detail

    asyncio.run(run())


def test_unsupported_engine_url_is_refused(tmp_path: Path, cache: Path) -> None:
    settings = SandboxSettings(provider="docker", docker_url="ssh://host", state_dir=tmp_path / "state")

    async def run() -> None:
        with pytest.raises(ProviderUnavailable, match="unix:///SOCKET or tcp://HOST:PORT") as refusal:
            await make_provider(settings).__aenter__()
        assert not refusal.value.retryable

    asyncio.run(run())


def test_engine_on_another_machine_is_refused(engine: Engine, tmp_path: Path, cache: Path) -> None:
    """The supervisor lies where only this test's mount namespace shows it."""
    script = (
        "import asyncio, sys\n"
        "from hone.sandbox import ProviderUnavailable, SandboxSpec, make_provider\n"
        "from hone.sandbox.settings import SandboxSettings\n"
        "async def main():\n"
        "    async with make_provider(SandboxSettings.model_validate_json(sys.argv[1])) as provider:\n"
        "        try: await provider.start(SandboxSpec())\n"
        "        except ProviderUnavailable as error: print(error.retryable, error)\n"
        "asyncio.run(main())\n"
    )
    hidden = tmp_path / "hidden"
    hidden.mkdir()
    settings = settings_of(engine, tmp_path, hidden)
    command = ["unshare", "--mount", "bash", "-ec", f'mount -t tmpfs none {hidden}; exec "$@"', "bash"]
    command += [sys.executable, "-c", script, settings.model_dump_json()]
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("False the engine at "), done
    assert "does not see this machine's files" in done.stdout
    assert containers(engine) == {}


def test_health_reports_engine_limits_and_a_sandbox(settings: SandboxSettings, engine: Engine) -> None:
    health = asyncio.run(make_provider(settings).health())
    found = {check.name: check for check in health.checks}
    assert health.ok
    assert engine.url in found["engine"].detail
    assert set(found) >= {"engine", "isolation", "tools", "limit: memory", "limit: pids", "limit: disk"}
    assert "pytest" in found["tools"].detail
    assert containers(engine) == {}


def test_health_reports_a_missing_image(settings: SandboxSettings) -> None:
    settings = settings.model_copy(update={"docker_image": f"127.0.0.1:{reserve_port()}/x:1"})
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("hone.sandbox.docker.images.FIRST_DELAY_S", 0.01)
        health = asyncio.run(make_provider(settings).health())
    assert not health.ok
    assert any("x:1 cannot be pulled" in check.detail for check in health.checks)


def test_health_reports_an_image_without_pytest(
    settings: SandboxSettings, engine: Engine, tmp_path: Path
) -> None:
    removed = {f"usr/{folder}/.wh.python3": b"" for folder in ("bin", "local/bin")}
    derive(tmp_path / "image.tar", "bare:1", removed, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]})
    engine.load(tmp_path / "image.tar")
    health = asyncio.run(make_provider(settings.model_copy(update={"docker_image": "bare:1"})).health())
    (tools,) = [check for check in health.checks if check.name == "tools"]
    assert (health.ok, tools.ok) == (False, False)
    assert "bare:1" in tools.detail
    assert "sandbox.docker_image" in tools.fix
