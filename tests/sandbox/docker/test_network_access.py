"""Network access of a container: the proxy with its allow-list, and the tunnel to one service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from unittest.mock import ANY

import pytest

from hone.sandbox import Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.proxied import answer, ask, connect, web_server
from tests.services.engines import Engine
from tests.services.image import derive

pytestmark = pytest.mark.sandbox


@pytest.fixture
def port() -> Iterator[int]:
    with web_server() as port:
        yield port


@pytest.fixture
def unprivileged(engine: Engine, tmp_path: Path) -> str:
    """An image whose user is not root."""
    config = {"User": "nobody", "Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]}
    derive(tmp_path / "image.tar", "unprivileged:1", {}, config)
    engine.load(tmp_path / "image.tar")
    return "docker://unprivileged:1"


def _inside(
    settings: SandboxSettings, scenario: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec
) -> None:
    async def run() -> None:
        async with make_provider(settings) as provider, await provider.start(spec) as sandbox:
            await scenario(sandbox)

    asyncio.run(run())


@pytest.mark.full
def test_only_allowed_hosts_are_reachable(settings: SandboxSettings, unprivileged: str, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await connect(sandbox, f"127.0.0.1:{port}") == ["200", ANY]
        assert await connect(sandbox, f"127.0.0.1:{port + 1}") == ["403"]
        assert (await sandbox.exec("echo $http_proxy")).text == "http://127.0.0.1:3128\n"

    _inside(settings, scenario, SandboxSpec(image=unprivileged, network=(f"127.0.0.1:{port}",)))
    _inside(settings, scenario, SandboxSpec(network=(f"127.0.0.1:{port}",)))


def test_tunnel_connects_to_its_service(settings: SandboxSettings, unprivileged: str, tmp_path: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        async with await asyncio.start_unix_server(answer, tmp_path / "service"):
            assert await ask(sandbox) == "you said hello\n"

    _inside(settings, scenario, SandboxSpec(image=unprivileged, tunnel=tmp_path / "service"))


def test_no_allow_list_means_no_network(settings: SandboxSettings) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert (await sandbox.exec("ls /run/hone; echo $http_proxy")).text == "\n"

    _inside(settings, scenario, SandboxSpec())
