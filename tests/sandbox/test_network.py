"""The ways out of a sandbox: the proxy with its allow-list, and the tunnel to one service."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Awaitable, Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hone.sandbox import ExecResult, Sandbox, SandboxSpec, make_provider
from hone.sandbox.contract import TUNNEL_PATH
from hone.sandbox.network import PROXY_PATH
from hone.sandbox.settings import SandboxSettings

pytestmark = pytest.mark.sandbox

# Asks the proxy for an address; prints the status, then what was answered.
_GET = """
import sys, urllib.error, urllib.request
try:
    with urllib.request.urlopen(sys.argv[1], timeout=20) as reply:
        print(reply.status, reply.read().decode())
except urllib.error.HTTPError as error:
    print(error.code, error.read().decode())
"""
# Says something by CONNECT and prints all that comes back.
_CONNECT = """
import socket, sys
with socket.create_connection(("127.0.0.1", 3128), timeout=20) as link:
    link.sendall(f"CONNECT {sys.argv[1]} HTTP/1.1\\r\\n\\r\\n".encode())
    reply = link.recv(4096)
    print(reply.split()[1].decode())
    if b" 200 " in reply:
        link.sendall(b"GET /big HTTP/1.0\\r\\n\\r\\n")
        size = 0
        while data := link.recv(1 << 16):
            size += len(data)
        print(size)
"""
_BIG = 3_000_000


class _Pages(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"x" * _BIG if self.path == "/big" else f"you asked for {self.path}".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None: ...


@pytest.fixture
def port() -> Iterator[int]:
    """A web server on this machine's loopback."""
    with ThreadingHTTPServer(("127.0.0.1", 0), _Pages) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def _inside(tmp_path: Path, scenario: Callable[[Sandbox], Awaitable[None]], spec: SandboxSpec) -> None:
    async def run() -> None:
        settings = SandboxSettings(state_dir=tmp_path / "state", cache_dir=tmp_path.parent / "cache")
        async with make_provider(settings) as provider, await provider.start(spec) as sandbox:
            await scenario(sandbox)
        assert list((tmp_path / "state").iterdir()) == []

    asyncio.run(run())


async def _get(sandbox: Sandbox, address: str) -> ExecResult:
    return await sandbox.exec(["python3", "-c", _GET, address], env={"no_proxy": "", "NO_PROXY": ""})


async def _connect(sandbox: Sandbox, address: str) -> list[str]:
    return (await sandbox.exec(["python3", "-c", _CONNECT, address])).text.split()


def test_what_is_on_the_list_is_reached_and_nothing_else(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        allowed = f"127.0.0.1:{port}"
        assert (await _get(sandbox, f"http://{allowed}/page?a=1")).text == "200 you asked for /page?a=1\n"
        status, size = await _connect(sandbox, allowed)
        assert (status, int(size) > _BIG) == ("200", True)
        assert await _connect(sandbox, f"127.0.0.1:{port + 1}") == ["403"]
        assert await _connect(sandbox, "169.254.169.254:80") == ["403"]
        refused = await _get(sandbox, "http://example.com/")
        assert refused.text.startswith("403 example.com:80 is not on the network allow-list")
        assert await _connect(sandbox, "rubbish") == ["400"]
        direct = await sandbox.exec(["python3", "-c", _GET, f"http://{allowed}/"])  # no_proxy: not through it
        assert direct.exit_code != 0

    _inside(tmp_path, scenario, SandboxSpec(network=(f"127.0.0.1:{port}",)))


def test_a_name_on_the_list_does_not_lead_to_the_host(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        assert await _connect(sandbox, f"localhost:{port}") == ["403"]

    _inside(tmp_path, scenario, SandboxSpec(network=(f"localhost:{port}",)))


def test_many_connections_at_once_are_served(tmp_path: Path, port: int) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        replies = await asyncio.gather(*(_connect(sandbox, f"127.0.0.1:{port}") for _ in range(12)))
        assert all(status == "200" and int(size) > _BIG for status, size in replies)

    _inside(tmp_path, scenario, SandboxSpec(network=(f"127.0.0.1:{port}",)))


def test_a_sandbox_without_a_list_has_no_way_out(tmp_path: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        looked = await sandbox.exec("ls /run/hone; env | grep -ci proxy; cat /proc/net/route | wc -l")
        assert looked.text.split() == ["0", "1"]

    _inside(tmp_path, scenario, SandboxSpec())


def test_a_list_takes_hosts_with_ports_only(tmp_path: Path) -> None:
    async def scenario(sandbox: Sandbox) -> None:
        raise AssertionError("it was started")

    for entry in ("pypi.org", "*.pypi.org:443", "https://pypi.org:443", "pypi.org:0", ":443"):
        with pytest.raises(ValueError, match="host:port"):
            _inside(tmp_path / entry[:3], scenario, SandboxSpec(network=(entry,)))


def test_the_tunnel_leads_to_the_named_service_alone(tmp_path: Path) -> None:
    service = tmp_path / "service.sock"

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(json.dumps({"got": (await reader.readline()).decode()}).encode())
        writer.close()

    async def scenario(sandbox: Sandbox) -> None:
        ask = (
            "import socket; s = socket.socket(socket.AF_UNIX); s.settimeout(20); "
            f"s.connect({TUNNEL_PATH!r}); s.sendall(b'hello\\n'); print(s.recv(100).decode())"
        )
        async with await asyncio.start_unix_server(answer, service):
            assert json.loads((await sandbox.exec(["python3", "-c", ask])).text) == {"got": "hello\n"}
        assert (await sandbox.exec("ls -A /run/hone")).text == "service.sock\n"
        gone = await sandbox.exec(["python3", "-c", ask])  # the service has ended: a closed line, not a hang
        assert (gone.text.strip(), gone.timed_out) == ("", False)
        left = await sandbox.exec(f"rm -f {TUNNEL_PATH} {PROXY_PATH}; ls /run/hone")
        assert left.text == "service.sock\n"

    _inside(tmp_path, scenario, SandboxSpec(tunnel=service))
