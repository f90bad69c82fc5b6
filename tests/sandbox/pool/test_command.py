"""`hone pool` as a process: it starts, shows its state, is killed and goes on, and stops cleanly."""

from __future__ import annotations

import asyncio
import json
import signal
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import aiohttp
import pytest

from hone.sandbox import ProviderUnavailable
from hone.sandbox.client.api import PoolClient, ask_status
from hone.sandbox.remote.server import ClientTls
from hone.sandbox.remote.wire import Beat, LeaseRequest, SpecBody
from tests.cli.in_process import hone
from tests.sandbox.pool.simulated import SimulatedNode, listening, node_app
from tests.waiting import wait_until_async

HONE = Path(sys.executable).with_name("hone")


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    path = tmp_path / "token"
    path.write_text("t\n")
    path.chmod(0o600)
    return path


async def started(words: Sequence[str | Path]) -> tuple[asyncio.subprocess.Process, str]:
    process = await asyncio.create_subprocess_exec(
        HONE, "pool", "--port", "0", *words, stderr=asyncio.subprocess.PIPE
    )
    assert process.stderr is not None
    line = (await asyncio.wait_for(process.stderr.readline(), 60)).decode()
    assert line.startswith("listening on "), line
    return process, line.split()[-1]


async def status_of(url: str, token_file: Path, *words: str) -> subprocess.CompletedProcess[str]:
    command = [str(HONE), *status_words(url, token_file), *words]
    return await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60)


def status_words(url: str, token_file: Path) -> list[str]:
    return ["pool", "status", "--url", url, "--token-file", str(token_file)]


def test_pool_command_serves_survives_a_kill_and_stops(tmp_path: Path, token_file: Path) -> None:
    async def run() -> None:
        node = SimulatedNode(capacity=3)
        async with listening(node_app(node)) as node_url, aiohttp.ClientSession() as session:
            words = ("--nodes", node_url, "--store", tmp_path / "s", "--token-file", token_file)
            process, url = await started(words)
            lease = await PoolClient(session, url, "t").allocate(
                LeaseRequest(lease_id="a", owner="o", spec=SpecBody(run="first-run"), ttl_s=3600)
            )
            shown = await status_of(url, token_file)
            assert shown.returncode == 0, shown.stderr
            assert {"first-run", "active", "allocated"} <= set(shown.stdout.split())
            assert "\x1b" not in shown.stdout  # no terminal
            told = json.loads((await status_of(url, token_file, "--json")).stdout)
            assert told["nodes"][0]["active"] == 1
            process.kill()
            await process.wait()
            process, url = await started(words)
            client = PoolClient(session, url, "t")
            assert await client.heartbeat([Beat(lease_id="a", generation=lease.generation)]) == []
            process.send_signal(signal.SIGTERM)
            assert await asyncio.wait_for(process.wait(), 60) == 0
            await wait_until_async(lambda: node.leases() == ["a"])  # leases outlive the server

    asyncio.run(run())


def test_status_of_an_unreachable_pool_is_one_sentence(token_file: Path) -> None:
    shown = hone(*status_words("http://127.0.0.1:9", token_file))
    assert shown.returncode == 1
    assert shown.stderr.startswith("hone: GET http://127.0.0.1:9/v1/status failed")
    assert shown.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--host", "0.0.0.0"], "without a token"),
        (["--token-file", "/nowhere/token"], "cannot be read"),
        (["--tls-cert", "cert.pem"], "go together"),
        (["--nodes", "node-1:5000"], "is not an address"),
        (["--nodes", "http://node-1\n:5000"], "is not an address"),
        (["--node-ca", "/nowhere/ca.pem"], "TLS files cannot be used"),
    ],
)
def test_unusable_options_are_refused_in_one_sentence(tmp_path: Path, words: list[str], said: str) -> None:
    refused = hone("pool", "--port", "0", "--store", tmp_path / "s", *words)
    assert refused.returncode in (1, 2)
    last = refused.stderr.splitlines()[-1]
    assert last.startswith("hone: ")
    assert said in last
    assert "unexpected error" not in last


def test_same_token_for_clients_and_nodes_is_refused(tmp_path: Path, token_file: Path) -> None:
    tokens = ["--token-file", token_file, "--node-token-file", token_file]
    refused = hone("pool", "--port", "0", "--store", tmp_path / "s", *tokens)
    assert refused.returncode == 1
    assert "same token" in refused.stderr


# --- mutual TLS


@pytest.fixture
def authority(tmp_path: Path) -> Path:
    """A folder with a certificate authority, and certificates of a server and a client that it signed."""
    folder = tmp_path / "tls"
    folder.mkdir()

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], cwd=folder, check=True, capture_output=True, timeout=60)

    key = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "2")
    openssl("req", "-x509", *key, "-keyout", "ca.key", "-out", "ca.pem", "-subj", "/CN=authority")
    for name, extension in (
        ("server", "subjectAltName=IP:127.0.0.1"),
        ("client", "keyUsage=digitalSignature"),
    ):
        openssl(
            *("req", "-x509", *key, "-CA", "ca.pem", "-CAkey", "ca.key", "-subj", f"/CN={name}"),
            *("-addext", extension, "-addext", "basicConstraints=critical,CA:FALSE"),
            *("-keyout", f"{name}.key", "-out", f"{name}.pem"),
        )
    return folder


def test_mutual_tls_serves_clients_with_a_certificate_only(
    tmp_path: Path, token_file: Path, authority: Path
) -> None:
    def file(name: str) -> Path:
        return authority / name

    async def run() -> None:
        served = ("--tls-cert", file("server.pem"), "--tls-key", file("server.key"))
        words = ("--store", tmp_path / "s", "--token-file", token_file, "--tls-client-ca", file("ca.pem"))
        process, url = await started((*served, *words))
        try:
            assert url.startswith("https://")
            known = ClientTls(ca=file("ca.pem"), certificate=file("client.pem"), key=file("client.key"))
            assert (await ask_status(url, "t", known)).nodes == []
            for stranger in (ClientTls(ca=file("ca.pem")), ClientTls()):
                with pytest.raises(ProviderUnavailable):
                    await ask_status(url, "t", stranger)
        finally:
            process.terminate()
            await process.wait()

    asyncio.run(run())


def test_two_servers_cannot_listen_on_one_port(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = str(listener.getsockname()[1])
        refused = hone("pool", "--port", port, "--store", tmp_path / "s")
    assert refused.returncode == 1
    assert "cannot be used" in refused.stderr.splitlines()[-1]
