"""Network access of a sandbox: the proxy with its allow-list, and the tunnel to one service."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest

from hone.sandbox import ExecResult, Sandbox, SandboxSpec, make_provider
from hone.sandbox.contract import TUNNEL_PATH
from hone.sandbox.init.bundle import forward_port_command
from hone.sandbox.network import PROXY_PATH
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.proxied import BIG, answer, ask, connect, web_server

pytestmark = pytest.mark.sandbox

# Get a URL through the proxy; print the status and the body.
_GET = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=60) as reply:
        print(reply.status, reply.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""


@pytest.fixture
def port() -> Iterator[int]:
    with web_server() as port:
        yield port


def _inside(tmp_path: Path, scenario: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec) -> None:
    async def run() -> None:
        settings = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with make_provider(settings) as provider, await provider.start(spec) as sandbox:
            await scenario(sandbox)
        assert list((tmp_path / "state").iterdir()) == []

    asyncio.run(run())


async def _get(sandbox: Sandbox, address: str) -> ExecResult:
    return await sandbox.exec(["python3", "-c", _GET, address], env={"no_proxy": "", "NO_PROXY": ""})


def test_only_allowed_hosts_are_reachable(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        allowed = f"127.0.0.1:{port}"
        assert (await _get(sandbox, f"http://{allowed}/page?a=1")).text == "200 you asked for /page?a=1\n"
        status, size = await connect(sandbox, allowed)
        assert (status, int(size) > BIG) == ("200", True)
        assert await connect(sandbox, f"127.0.0.1:{port + 1}") == ["403"]
        assert await connect(sandbox, "169.254.169.254:80") == ["403"]
        refused = await _get(sandbox, "http://example.com/")
        assert refused.text.startswith("403 example.com:80 is not on the network allow-list")
        assert await connect(sandbox, "rubbish") == ["400"]
        direct = await sandbox.exec(["python3", "-c", _GET, f"http://{allowed}/"])  # no_proxy: not through it
        assert direct.exit_code != 0

    _inside(tmp_path, scenario, SandboxSpec(network=(f"127.0.0.1:{port}",)))


def test_allowed_name_cannot_reach_the_host(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await connect(sandbox, f"localhost:{port}") == ["403"]

    _inside(tmp_path, scenario, SandboxSpec(network=(f"localhost:{port}",)))


def test_concurrent_connections_are_served(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        replies = await asyncio.gather(*(connect(sandbox, f"127.0.0.1:{port}") for _ in range(12)))
        assert all(status == "200" and int(size) > BIG for status, size in replies)

    _inside(tmp_path, scenario, SandboxSpec(network=(f"127.0.0.1:{port}",)))


def test_no_allow_list_means_no_network(tmp_path: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        looked = await sandbox.exec("ls /run/hone; env | grep -ci proxy; cat /proc/net/route | wc -l")
        assert looked.text.split() == ["0", "1"]

    _inside(tmp_path, scenario, SandboxSpec())


def test_allow_list_entry_needs_a_port(tmp_path: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        raise AssertionError("it was started")

    for entry in ("pypi.org", "*.pypi.org:443", "https://pypi.org:443", "pypi.org:0", ":443"):
        with pytest.raises(ValueError, match="host:port"):
            _inside(tmp_path, scenario, SandboxSpec(network=(entry,)))


def test_tunnel_connects_to_the_named_service_only(tmp_path: Path) -> None:
    service = tmp_path / "service.sock"

    async def scenario(sandbox: Sandbox) -> None:
        async with await asyncio.start_unix_server(answer, service):
            assert await ask(sandbox) == "you said hello\n"
        assert (await sandbox.exec("ls -A /run/hone")).text == "service.sock\n"
        assert await ask(sandbox) == ""  # the service has ended: the connection closes
        left = await sandbox.exec(f"rm -f {TUNNEL_PATH} {PROXY_PATH}; ls /run/hone")
        assert left.text == "service.sock\n"

    _inside(tmp_path, scenario, SandboxSpec(tunnel=service))


def test_forwarded_port_reaches_the_tunnel(tmp_path: Path) -> None:
    async def reply(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write((await reader.readline()).upper())
        writer.close()

    async def scenario(sandbox: Sandbox) -> None:
        service = tmp_path / "service.sock"
        async with await asyncio.start_unix_server(reply, service):
            service.chmod(0o666)
            assert (await sandbox.exec(forward_port_command(8123, TUNNEL_PATH))).exit_code == 0
            command = "exec 3<>/dev/tcp/127.0.0.1/8123; echo hello >&3; cat <&3"
            assert (await sandbox.exec(command)).text == "HELLO\n"

    _inside(tmp_path, scenario, SandboxSpec(tunnel=tmp_path / "service.sock"))
