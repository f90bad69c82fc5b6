"""`hone node` as a process: its options, its end by a signal, its end by force, TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hone.sandbox import SandboxError, SandboxLost
from hone.sandbox.remote.server import ClientTls
from tests.cli.in_process import hone
from tests.sandbox.node.served import TOKEN, NodeProvider
from tests.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.sandbox
HONE_NODE = [sys.executable, "-c", "from hone.cli import main; raise SystemExit(main())", "node"]


@contextlib.contextmanager
def started(folder: Path, *options: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A node as a process with its own directories, and its address."""
    for name in ("runtime", "cache"):
        (folder / name).mkdir(mode=0o700, exist_ok=True)
    token = folder / "token"
    token.touch(mode=0o600)
    token.write_text(TOKEN)
    process = subprocess.Popen(
        [*HONE_NODE, "--port", "0", "--token-file", str(token), *options],
        env={
            **os.environ,
            "XDG_RUNTIME_DIR": str(folder / "runtime"),
            "XDG_CACHE_HOME": str(folder / "cache"),
        },
        stderr=subprocess.PIPE,
        text=True,
    )
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        assert line.startswith("listening on "), line + process.stderr.read()
        yield process, line.split()[-1]
    finally:
        process.kill()
        process.wait()
        process.stderr.close()


def state(folder: Path) -> list[str]:
    """What provider and node keep while they run."""
    kept = (folder / "runtime" / "hone", folder / "cache" / "hone" / "nodes")
    return [path.name for directory in kept for path in directory.iterdir()]


def processes_with(word: str) -> list[int]:
    """Processes of this machine with a word in their command line, this one aside."""
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            if entry.name.isdigit() and word.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
    return found


async def _begin_endless(url: str, seconds: str) -> tuple[NodeProvider, asyncio.Task[Any]]:
    provider = await NodeProvider(url).__aenter__()
    sandbox = await provider.start_default()
    running = asyncio.create_task(sandbox.exec(["sleep", seconds], timeout_s=1000))
    await wait_until_async(lambda: processes_with(seconds))
    return provider, running


@pytest.mark.parametrize(
    "number", [signal.SIGTERM, pytest.param(signal.SIGINT, marks=pytest.mark.full)], ids=int
)
def test_signal_ends_sandboxes_and_fails_pending_requests(number: signal.Signals, tmp_path: Path) -> None:
    seconds = f"100{os.getpid()}{number}"

    async def use(process: subprocess.Popen[str], url: str) -> None:
        provider, running = await _begin_endless(url, seconds)
        process.send_signal(number)
        with pytest.raises(SandboxLost):
            await running
        assert await asyncio.to_thread(process.wait, 60) == 0
        await provider.__aexit__()

    with started(tmp_path) as (process, url):
        asyncio.run(use(process, url))
    assert processes_with(seconds) == []
    assert state(tmp_path) == []


@pytest.mark.full
def test_next_start_removes_leftovers_of_a_killed_node(tmp_path: Path) -> None:
    seconds = f"200{os.getpid()}"

    async def use(process: subprocess.Popen[str], url: str) -> None:
        provider, running = await _begin_endless(url, seconds)
        process.kill()
        with pytest.raises(SandboxLost):
            await running
        await provider.__aexit__()

    with started(tmp_path) as (process, url):
        asyncio.run(use(process, url))
    left = state(tmp_path)
    assert left

    async def is_healthy(url: str) -> None:
        async with NodeProvider(url) as provider:
            assert await provider.client.healthy()

    with started(tmp_path) as (process, url):
        asyncio.run(is_healthy(url))
        assert not set(left) & set(state(tmp_path))
        wait_until(lambda: not processes_with(seconds))
        process.terminate()
        assert process.wait(60) == 0
    assert state(tmp_path) == []


def test_a_node_without_a_token_listens_on_loopback_only() -> None:
    done = hone("node", "--port", "0", "--host", "0.0.0.0")
    assert done.returncode == 1
    assert "--token-file" in done.stderr


def test_token_file_readable_by_others_is_refused(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("s3cret")
    (tmp_path / "token").chmod(0o644)
    done = hone("node", "--port", "0", "--token-file", str(tmp_path / "token"))
    assert done.returncode == 1
    assert "chmod 600" in done.stderr


def test_incomplete_tls_options_are_refused(tmp_path: Path) -> None:
    done = hone("node", "--port", "0", "--tls-cert", str(tmp_path / "x"))
    assert done.returncode == 2
    assert "--tls-key" in done.stderr


def _certificates(folder: Path) -> None:
    """An authority, and a certificate of it for a server and for a client."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], cwd=folder, check=True, capture_output=True)

    for name in ("ca", "server", "client"):
        openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", f"{name}.key")
    openssl("req", "-x509", "-key", "ca.key", "-subj", "/CN=ca", "-days", "2", "-out", "ca.pem")
    (folder / "names").write_text("subjectAltName=IP:127.0.0.1")
    for name in ("server", "client"):
        openssl("req", "-new", "-key", f"{name}.key", "-subj", f"/CN={name}", "-out", f"{name}.csr")
        openssl(
            *("x509", "-req", "-in", f"{name}.csr", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial"),
            *("-days", "2", "-extfile", "names", "-out", f"{name}.pem"),
        )


@pytest.mark.full
def test_mutual_tls_serves_clients_of_the_authority_only(tmp_path: Path) -> None:
    _certificates(tmp_path)
    options = ("--tls-cert", "server.pem", "--tls-key", "server.key", "--tls-client-ca", "ca.pem")
    files = [option if option.startswith("-") else str(tmp_path / option) for option in options]

    async def use(url: str) -> None:
        ours = ClientTls(
            ca=tmp_path / "ca.pem", certificate=tmp_path / "client.pem", key=tmp_path / "client.key"
        )
        async with NodeProvider(url, ours) as provider, await provider.start_default() as sandbox:
            assert (await sandbox.exec("echo safe")).text == "safe\n"
        for tls in (ClientTls(ca=tmp_path / "ca.pem"), ClientTls()):
            async with NodeProvider(url, tls) as provider:
                with pytest.raises(SandboxError):
                    await provider.client.info()

    with started(tmp_path, *files) as (_, url):
        assert url.startswith("https://")
        asyncio.run(use(url))
