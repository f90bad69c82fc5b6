"""Servers that a run starts: start, restart, and stop with the run."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from hone.policy.engine import EngineError, Sampling
from hone.policy.engines.fleet import Fleet
from hone.policy.engines.managed_server import ManagedServer, require_free, reserved_port, server_command
from hone.policy.engines.open import open_servers
from hone.policy.settings import ModelSettings, ServerEngineSettings
from tests.policy.engines.conftest import require_exact
from tests.waiting import wait_until, wait_until_async

ROOT = Path(__file__).parents[3]
PROMPT = [5, 6, 7, 8]


@pytest.fixture
def model(tokenizer, tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    tokenizer.save_pretrained(folder)
    (folder / "config.json").write_text("{}")
    return folder


@pytest.fixture
def python(tmp_path: Path) -> Path:
    return toy_python(tmp_path / "python")


def toy_python(path: Path) -> Path:
    """Return an interpreter whose SGLang is the toy server."""
    path.write_text(
        f'#!/bin/sh\n[ "$1" = "-c" ] && exit 0\ncd {ROOT} || exit 1\n'
        f'exec {sys.executable} -m tests.policy.engines.serve_toy "$@"\n'
    )
    path.chmod(0o755)
    return path


def settings(python: Path, **changes: Any) -> ServerEngineSettings:
    return ServerEngineSettings(
        kind="sglang", context_tokens=100, python=python, **{"ready_timeout_s": 100.0, **changes}
    )


@asynccontextmanager
async def opened(
    model: Path, python: Path, tokenizer: Any, logs: Path, **changes: Any
) -> AsyncGenerator[Fleet]:
    wanted = settings(python, **changes)
    async with open_servers(wanted, ModelSettings(path=model), tokenizer, logs=logs) as fleet:
        yield fleet


def pids(model: Path) -> list[int]:
    return [int(pid) for pid in (model / "pids").read_text().split()]


def wait_until_gone(processes: list[int]) -> None:
    wait_until(lambda: not any(_lives(pid) for pid in processes), f"some of {processes} run")


def _lives(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def test_run_starts_its_server_and_leaves_no_process(model, python, tokenizer, tmp_path: Path):
    logs, told = tmp_path / "engine", []

    async def run():
        wanted, named = settings(python), ModelSettings(path=model)
        async with open_servers(wanted, named, tokenizer, logs=logs, say=told.append) as fleet:
            facts = json.loads((logs / "server-0.json").read_text())
            reply = await fleet.generate(PROMPT, Sampling(max_tokens=5, seed=1), session="s")
            return reply, facts, pids(model)

    reply, facts, processes = asyncio.run(run())
    require_exact(PROMPT, reply, {0: 0}, len(tokenizer))
    assert facts["url"].startswith("http://127.0.0.1:")
    assert "--context-length" in facts["command"]
    assert told[-1].startswith("sglang server 0 is ready after")
    wait_until_gone(processes)
    assert [path.name for path in logs.iterdir()] == ["server-0.log"]


def test_killed_server_restarts_with_the_newest_weights(model, python, tokenizer, weights, tmp_path: Path):
    async def run():
        async with opened(model, python, tokenizer, tmp_path / "engine") as fleet:
            await fleet.load_weights(weights(7), 7)
            before = pids(model)
            os.kill(before[0], signal.SIGKILL)
            reply = await fleet.generate(PROMPT, Sampling(max_tokens=5, seed=1), session="s")
            return reply, before, pids(model)

    reply, before, after = asyncio.run(run())
    assert set(reply.version.tolist()) == {7}
    require_exact(PROMPT, reply, {7: 7}, len(tokenizer))
    assert not set(before) & set(after)
    wait_until_gone([*before, *after])


@pytest.mark.parametrize("kill", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.full)])
def test_server_never_outlives_its_run(model, python, tmp_path: Path, kill):
    script = (
        "import asyncio\nfrom pathlib import Path\n"
        "from hone.policy.engines.managed_server import ManagedServer\n"
        "from hone.policy.settings import ModelSettings, ServerEngineSettings\n"
        f"model, python, log = Path({str(model)!r}), Path({str(python)!r}), Path({str(tmp_path / 'log')!r})\n"
        "settings = ServerEngineSettings(kind='sglang', context_tokens=64, python=python)\n"
        "model = ModelSettings(path=model)\n"
        "async def main():\n"
        "    await ManagedServer('toy', settings, model, log).start()\n"
        "    print('up', flush=True)\n"
        "    await asyncio.Event().wait()\n"
        "asyncio.run(main())\n"
    )
    run = subprocess.Popen([sys.executable, "-c", script], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    try:
        assert run.stdout is not None
        assert run.stdout.readline() == "up\n"
        processes = pids(model)
        run.send_signal(kill)
        run.wait(30)
    finally:
        run.kill()
        run.wait()
    wait_until_gone(processes)


def test_server_that_exits_at_once_is_reported_with_its_log(model, python, tokenizer, tmp_path: Path):
    async def refusal() -> str:
        with pytest.raises(EngineError) as caught:
            async with opened(model, python, tokenizer, tmp_path / "engine"):
                pass
        return str(caught.value)

    (model / "fail").write_text("the model has a type that nobody knows")
    plain = asyncio.run(refusal())
    (model / "fail").write_text("CUDA out of memory. Tried to allocate 2.00 GiB")
    memory = asyncio.run(refusal())
    assert "sglang server 0 ended with exit code 1: the model has a type that nobody knows (log: " in plain
    assert "not enough memory: lower engine.max_batch, engine.context_tokens" in memory
    wait_until_gone(pids(model))


@pytest.mark.full
def test_server_that_never_becomes_ready_is_stopped(model, python, tokenizer, tmp_path: Path):
    (model / "hang").touch()

    async def run():
        with pytest.raises(EngineError, match=r"was not ready within 6 s: see .*server-0\.log"):
            async with opened(model, python, tokenizer, tmp_path / "engine", ready_timeout_s=6.0):
                pass

    asyncio.run(run())
    wait_until_gone(pids(model) if (model / "pids").exists() else [])


def test_cancelling_a_starting_server_leaves_no_process(model, python, tokenizer, tmp_path: Path):
    (model / "hang").touch()

    async def run():
        async def start():
            async with opened(model, python, tokenizer, tmp_path / "engine"):
                pass

        starting = asyncio.create_task(start())
        await wait_until_async(lambda: (model / "pids").exists() and len(pids(model)) >= 2)
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting

    asyncio.run(run())
    wait_until_gone(pids(model))


def test_port_of_a_starting_server_is_reserved(model, python, tmp_path: Path):
    (model / "hang").touch()
    settings = ServerEngineSettings(kind="sglang", context_tokens=64, python=python)

    async def run() -> int:
        managed = ManagedServer("toy", settings, ModelSettings(path=model), tmp_path / "toy.log")
        starting = asyncio.create_task(managed.start())
        facts = tmp_path / "toy.json"
        await wait_until_async(lambda: facts.exists() and (model / "pids").exists())
        port = int(json.loads(facts.read_text())["url"].rpartition(":")[2])
        with socket.socket() as other, pytest.raises(OSError, match="in use"):
            other.bind(("127.0.0.1", port))
        starting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await starting
        await managed.stop()
        return port

    require_free("127.0.0.1", asyncio.run(run()))


def test_occupied_port_is_named():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(EngineError, match=rf"port {port} of 127.0.0.1 cannot be used.*--port"):
            require_free("127.0.0.1", port)


def test_missing_engine_package_is_reported_with_a_remedy(model, tmp_path: Path):
    bare = tmp_path / "bare"
    bare.write_text("#!/bin/sh\nexit 1\n")
    bare.chmod(0o755)

    def command(python: Path) -> object:
        settings = ServerEngineSettings(kind="sglang", context_tokens=64, python=python)
        return server_command(settings, ModelSettings(path=model), "127.0.0.1", 1)

    with pytest.raises(EngineError, match=r"sglang is not installed for .*bare: .*set engine.python"):
        command(bare)
    with pytest.raises(EngineError, match=r"cannot run `engine.python` = .*nowhere"):
        command(tmp_path / "nowhere")


def test_sglang_finds_the_plugin_beside_those_of_users(model, python, monkeypatch: pytest.MonkeyPatch):
    def variables() -> dict[str, str]:
        return server_command(settings(python), ModelSettings(path=model), "127.0.0.1", 1)[1]

    monkeypatch.setenv("PYTHONPATH", "/theirs")
    monkeypatch.delenv("SGLANG_PLUGINS", raising=False)
    inside, theirs = variables()["PYTHONPATH"].split(os.pathsep)
    assert (Path(inside) / "hone_sglang.py").is_file()
    assert theirs == "/theirs"
    assert "SGLANG_PLUGINS" not in variables()  # which would exclude theirs
    monkeypatch.setenv("SGLANG_PLUGINS", "a,b")
    assert variables()["SGLANG_PLUGINS"] == "a,b,hone"


def test_server_keeps_its_given_address(model, python, tmp_path: Path):
    settings = ServerEngineSettings(kind="sglang", context_tokens=64, python=python)

    async def run(port: int) -> tuple[str, str]:
        managed = ManagedServer(
            "toy", settings, ModelSettings(path=model), tmp_path / "toy.log", address=("127.0.0.1", port)
        )
        try:
            return await managed.start(), await managed.start()  # a healthy server is kept
        finally:
            await managed.stop()

    with reserved_port("127.0.0.1") as port:
        assert asyncio.run(run(port)) == (f"http://127.0.0.1:{port}",) * 2
