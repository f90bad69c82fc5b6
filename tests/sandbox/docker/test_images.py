"""Images that an engine does not hold: pulled once, or refused with what is the matter."""

from __future__ import annotations

import asyncio
import contextlib
import ctypes
import io
import re
import tarfile
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable, ProviderUnavailable, SandboxSpec, make_provider
from hone.sandbox.docker.images import pull_error
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.docker.conftest import settings_of
from tests.sandbox.docker.looking import containers
from tests.sandbox.images.building import copied, write_context
from tests.services.engines import Engine, docker_engine
from tests.services.image import BASE_IMAGE, base_archive
from tests.services.process import reserve_port, service_folder
from tests.services.registry import Registry
from tests.waiting import wait_until_async

pytestmark = pytest.mark.sandbox


@dataclass(slots=True)
class Requests:
    """The paths of the requests that a registry got."""

    paths: list[str] = field(default_factory=list[str])

    def of(self, kind: str) -> list[str]:
        return [path for path in self.paths if f"/{kind}/" in path]


@contextlib.contextmanager
def _front(registry: Registry, failures: int = 0) -> Iterator[tuple[str, Requests]]:
    """A registry's address that records requests and fails the first pulls of a manifest."""
    requests = Requests()

    class Handler(BaseHTTPRequestHandler):
        def _forward(self) -> None:
            requests.paths.append(self.path)
            if "/manifests/" in self.path and len(requests.of("manifests")) <= failures:
                self.send_error(503)
                return
            upstream = HTTPConnection(registry.address)
            upstream.putrequest(self.command, self.path, skip_host=True, skip_accept_encoding=True)
            for name, value in self.headers.items():  # some of them several times
                upstream.putheader(name, value)
            upstream.endheaders()
            answer = upstream.getresponse()
            self.send_response(answer.status)
            for name, value in answer.getheaders():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(answer.read())

        do_GET = do_HEAD = _forward

        def log_message(self, format: str, *args: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"127.0.0.1:{server.server_port}", requests
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def mine(docker: Engine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    return settings_of(docker, tmp_path, tmp_path_factory.getbasetemp() / "cache")


def _problem_of(settings: SandboxSettings, name: str) -> ImageUnavailable:
    async def run() -> ImageUnavailable:
        async with make_provider(settings) as provider:
            with pytest.raises(ImageUnavailable) as refusal:
                await provider.start(SandboxSpec(image=f"docker://{name}"))
            return refusal.value

    return asyncio.run(run())


@pytest.mark.full
@pytest.mark.usefixtures("registry_image")
def test_concurrent_starts_share_one_pull(mine: SandboxSettings, docker: Engine, registry: Registry) -> None:
    with _front(registry) as (address, requests):
        spec = SandboxSpec(image=f"docker://{address}/{BASE_IMAGE}")

        async def run() -> None:
            async with make_provider(mine) as provider:
                starts = [asyncio.ensure_future(provider.start(spec)) for _ in range(4)]
                await wait_until_async(lambda: requests.paths)
                starts[0].cancel()  # the others are not to suffer
                for start in starts[1:]:
                    async with await start as sandbox:
                        assert (await sandbox.exec("echo ran")).text == "ran\n"
                async with await provider.start(spec):
                    pass

        asyncio.run(run())
    assert len(requests.of("manifests")) == len(set(requests.of("manifests"))) > 0
    assert containers(docker) == {}


@pytest.mark.usefixtures("registry_image")
def test_pull_is_retried_after_a_registry_error(mine: SandboxSettings, registry: Registry) -> None:
    with _front(registry, failures=3) as (address, requests):

        async def run() -> None:
            async with make_provider(mine) as provider:
                spec = SandboxSpec(image=f"docker://{address}/{BASE_IMAGE}")
                async with await provider.start(spec) as sandbox:
                    assert (await sandbox.exec("echo ran")).text == "ran\n"

        asyncio.run(run())
        assert len(requests.of("manifests")) > 3


def test_close_cancels_a_shared_pull(mine: SandboxSettings, registry: Registry) -> None:
    with _front(registry, failures=1000) as (address, requests):

        async def run() -> object:
            async with make_provider(mine) as provider:
                spec = SandboxSpec(image=f"docker://{address}/{BASE_IMAGE}")
                start = asyncio.ensure_future(provider.start(spec))
                await wait_until_async(lambda: requests.paths)
            return (await asyncio.gather(start, return_exceptions=True))[0]

        error = asyncio.run(run())
    assert "closed" in str(error)


def test_unknown_image_is_refused(mine: SandboxSettings, registry: Registry) -> None:
    error = _problem_of(mine, f"{registry.address}/no/such:1")
    assert (error.problem, error.retryable) == ("unknown_image", False)
    assert "no/such:1" in str(error)


def test_unreachable_registry_is_retryable(mine: SandboxSettings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hone.sandbox.docker.images.FIRST_DELAY_S", 0.01)
    error = _problem_of(mine, f"127.0.0.1:{reserve_port()}/x:1")
    assert (error.problem, error.retryable) == ("registry_unavailable", True)


def test_image_of_another_architecture_is_refused(
    mine: SandboxSettings, docker: Engine, tmp_path: Path
) -> None:
    with tarfile.open(base_archive()) as source, tarfile.open(tmp_path / "image.tar", "w") as target:
        for member in source:
            content = source.extractfile(member)
            assert content is not None
            data = content.read()
            if member.name.endswith(".json"):
                data = re.sub(rb'"architecture": "\w+"', b'"architecture": "s390x"', data)
                data = data.replace(BASE_IMAGE.encode(), b"elsewhere:1")
                data = re.sub(rb"[0-9a-f]{64}\.json", b"config.json", data)
                member.size = len(data)
                if member.name != "manifest.json":
                    member.name = "config.json"
            target.addfile(member, io.BytesIO(data))
    docker.load(tmp_path / "image.tar")
    error = _problem_of(mine, "elsewhere:1")
    assert (error.problem, error.retryable) == ("other_architecture", False)
    assert "s390x" in str(error)


@pytest.mark.full
@pytest.mark.usefixtures("registry_image")
def test_full_engine_disk_is_retryable(
    registry: Registry,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("hone.sandbox.docker.images.FIRST_DELAY_S", 0.01)
    libc = ctypes.CDLL(None, use_errno=True)
    with service_folder() as folder:
        assert libc.mount(b"none", bytes(folder), b"tmpfs", 0, b"size=40m") == 0
        with docker_engine(folder) as engine:
            settings = settings_of(engine, tmp_path, tmp_path_factory.getbasetemp() / "cache")
            error = _problem_of(settings, f"{registry.address}/{BASE_IMAGE}")
        assert libc.umount2(bytes(folder), 2) == 0
    assert (error.problem, error.retryable) == ("disk_full", True)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        ("manifest for x:1 not found: manifest unknown: manifest unknown", "unknown_image"),
        (
            "pull access denied for x, repository does not exist or may require 'docker login'",
            "unknown_image",
        ),
        ("no matching manifest for linux/amd64 in the manifest list entries", "other_architecture"),
        ("no image found in manifest list for architecture amd64", "other_architecture"),
        ("write /var/lib/docker/tmp/x: no space left on device", "disk_full"),
        ("filesystem layer verification failed for digest sha256:0", "damaged_image"),
        ("toomanyrequests: You have reached your pull rate limit", "registry_unavailable"),
        ("dial tcp 127.0.0.1:1: connect: connection refused", "registry_unavailable"),
        ("dial tcp: lookup registry.invalid: no such host", "registry_unavailable"),
        ("received unexpected HTTP status: 503 Service Unavailable", "registry_unavailable"),
    ],
)
def test_engine_messages_are_classified(said: str, problem: str) -> None:
    error = pull_error("x:1", said)
    assert error.problem == problem
    assert said in str(error)


def test_engine_builds_a_dockerfile_once(mine: SandboxSettings, tmp_path: Path) -> None:
    context = write_context(tmp_path / "context", f"FROM {BASE_IMAGE}\nWORKDIR /app\nRUN echo 1 > built\n")
    image = "docker://localhost/hone/test:once"

    async def run() -> str:
        async with make_provider(mine) as provider:
            await asyncio.gather(*(provider.build(image, copied(context), network=False) for _ in range(2)))
            (context / "Dockerfile").write_text(f"FROM {BASE_IMAGE}\nRUN false\n")
            await provider.build(image, copied(context), network=False)
            with pytest.raises(ProviderUnavailable, match="returned a non-zero code") as raised:
                await provider.build(f"{image}-2", copied(context), network=False)
            assert "\n" not in str(raised.value)
            with pytest.raises(ImageUnavailable, match="was removed from the engine"):
                await provider.start(SandboxSpec(image=f"{image}-3"))
            async with await provider.start(SandboxSpec(image=image)) as sandbox:
                return (await sandbox.exec("pwd; cat built")).text

    assert asyncio.run(run()) == "/app\n1\n"
