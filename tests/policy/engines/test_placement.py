"""GPUs of the servers that a run starts, and servers that sleep while the trainer uses them."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.policy.engine import EngineError, Sampling
from hone.policy.engines.client import Http
from hone.policy.engines.managed_server import ServerDevices, server_command
from hone.policy.engines.vllm import Vllm
from hone.policy.settings import ModelSettings, ServerEngineSettings

PROMPT = [5, 6, 7, 8]
SAMPLING = Sampling(temperature=1.0, max_tokens=4, seed=1, stop_token_ids=())


@pytest.fixture
def python(tmp_path: Path) -> Path:
    """An interpreter that has every package."""
    path = tmp_path / "python"
    path.write_text("#!/bin/sh\nexit 0\n")
    path.chmod(0o755)
    return path


def command(python: Path, kind: str, devices: ServerDevices) -> tuple[list[str], dict[str, str]]:
    settings = ServerEngineSettings(kind=kind, python=python)  # type: ignore[arg-type]
    return server_command(settings, ModelSettings(path=Path("m")), "127.0.0.1", 1, devices)


@pytest.mark.parametrize("kind", ["vllm", "sglang"])
def test_server_sees_only_its_own_gpus(python: Path, kind: str, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert command(python, kind, ServerDevices(gpus=(2, 3)))[1]["CUDA_VISIBLE_DEVICES"] == "2,3"
    assert "CUDA_VISIBLE_DEVICES" not in command(python, kind, ServerDevices())[1]


def test_gpus_are_counted_among_those_of_the_run(python: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,6,GPU-8c1d")
    assert command(python, "vllm", ServerDevices(gpus=(1, 2)))[1]["CUDA_VISIBLE_DEVICES"] == "6,GPU-8c1d"
    assert command(python, "vllm", ServerDevices())[1]["CUDA_VISIBLE_DEVICES"] == "4,6,GPU-8c1d"


def test_server_that_sleeps_keeps_its_weights_on_the_host(python: Path):
    assert "--enable-sleep-mode" in command(python, "vllm", ServerDevices(sleeps=True))[0]
    flags = command(python, "sglang", ServerDevices(sleeps=True))[0]
    assert {"--enable-memory-saver", "--enable-weights-cpu-backup"} <= set(flags)
    assert not any("memory-saver" in flag for flag in command(python, "sglang", ServerDevices())[0])


def test_requests_wait_while_servers_sleep(open_toys):
    async def scenario() -> None:
        async with open_toys(servers=2) as (fleet, toys):
            async with fleet.asleep():
                assert [toy.asleep for toy in toys] == [True, True]
                reply = asyncio.create_task(fleet.generate(PROMPT, SAMPLING, session="s"))
                await asyncio.sleep(0)
                assert not any(toy.generate_requests for toy in toys)
            assert [toy.asleep for toy in toys] == [False, False]
            assert len((await reply).token_ids) == 4

    asyncio.run(scenario())


def test_server_that_cannot_sleep_wakes_the_others(open_toys):
    async def scenario() -> None:
        async with open_toys(servers=2) as (fleet, toys):
            toys[1].sick = True
            with pytest.raises(EngineError):
                async with fleet.asleep():
                    raise AssertionError("a server is awake")
            assert not toys[0].asleep
            toys[1].sick = False
            assert len((await fleet.generate(PROMPT, SAMPLING, session="s")).token_ids) == 4

    asyncio.run(scenario())


def test_server_that_died_asleep_is_restarted(open_toys):
    async def scenario() -> None:
        async with open_toys() as (fleet, (toy,)):
            async with fleet.asleep():
                await toy.stop()
            await toy.restart()
            assert len((await fleet.generate(PROMPT, SAMPLING, session="s")).token_ids) == 4

    asyncio.run(scenario())


def test_vllm_sleeps_with_its_weights_in_host_memory(monkeypatch: pytest.MonkeyPatch):
    async def scenario() -> None:
        calls: list[str] = []

        async def post(self: Http, path: str, body: object = None, *, timeout_s: float = 30.0) -> None:
            calls.append(path)

        monkeypatch.setattr(Http, "post", post)
        client = Vllm(Http(None, "http://none"))  # type: ignore[arg-type]
        await client.sleep(timeout_s=1.0)
        await client.wake_up(timeout_s=1.0)
        assert calls == ["/sleep?level=1&mode=wait", "/wake_up"]

    asyncio.run(scenario())
