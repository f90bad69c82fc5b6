"""Registries that refuse, fail or do not answer: typed errors, limited retries and parallel pulls."""

from __future__ import annotations

import asyncio
import hashlib
import shutil
import threading
from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images import ImageStore, skopeo
from hone.sandbox.images.reference import parse
from hone.sandbox.images.sources import from_registry
from tests.sandbox.images.answering import answering
from tests.sandbox.images.oci import ARCHITECTURE, entry, gz, make_layout, make_list, push, tar
from tests.sandbox.images.traces import left
from tests.services.process import reserve_port
from tests.services.registry import Registry
from tests.waiting import wait_until_async

pytestmark = pytest.mark.sandbox
LAYER = tar(entry("f", b"content"))


@pytest.fixture(autouse=True)
def quick_tries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(skopeo, "FIRST_DELAY_S", 0.01)


def refused(store: ImageStore, name: str) -> ImageUnavailable:
    with pytest.raises(ImageUnavailable) as raised:
        asyncio.run(store.ensure(name))
    assert "\n" not in str(raised.value)
    return raised.value


@pytest.fixture
def image(registry: Registry, tmp_path: Path) -> str:
    return push(make_layout(tmp_path / "layout", [LAYER]), f"{registry.address}/small:v1")


@pytest.mark.parametrize("name", ["small:none", "none:v1", "small@sha256:" + "0" * 64])
def test_unknown_image_is_named(
    store: ImageStore, directory: Path, registry: Registry, image: str, name: str
) -> None:
    error = refused(store, f"{registry.address}/{name}")
    assert (error.problem, error.retryable) == ("unknown_image", False)
    assert f"there is no image {registry.address}/{name}" in str(error)
    assert left(directory) == []


def test_unreachable_registry_is_tried_five_times(store: ImageStore, directory: Path) -> None:
    messages: list[str] = []
    with pytest.raises(ImageUnavailable, match="does not answer") as raised:
        asyncio.run(store.ensure(f"127.0.0.1:{reserve_port()}/x", report=messages.append))
    assert (raised.value.problem, raised.value.retryable) == ("registry_unavailable", True)
    assert sum("again in" in line for line in messages) == skopeo.ATTEMPTS - 1
    assert left(directory) == []


@pytest.mark.parametrize("status", [429, 500, 502, 503])
def test_failing_registry_is_retried_until_it_answers(
    store: ImageStore, registry: Registry, image: str, status: int
) -> None:
    with answering([status] * 4, then=registry.address) as failing:
        found = asyncio.run(store.ensure(f"{failing.address}/small:v1"))
    assert [path.name for path in found.layers[0].iterdir()] == ["f"]


@pytest.mark.parametrize("status", [429, 503])
def test_registry_that_keeps_failing_is_retryable(store: ImageStore, directory: Path, status: int) -> None:
    with answering([status]) as failing:
        error = refused(store, f"{failing.address}/x")
    assert (error.problem, error.retryable) == ("registry_unavailable", True)
    assert skopeo.ATTEMPTS <= len(failing.requests) <= skopeo.ATTEMPTS * 10
    assert left(directory) == []


@pytest.mark.parametrize(
    ("status", "problem"),
    [(401, "registry_unavailable"), (403, "registry_unavailable"), (404, "unknown_image")],
)
def test_refusal_is_not_retried(store: ImageStore, directory: Path, status: int, problem: str) -> None:
    messages: list[str] = []
    with answering([status]) as refusing, pytest.raises(ImageUnavailable) as raised:
        asyncio.run(store.ensure(f"{refusing.address}/x", report=messages.append))
    assert (raised.value.problem, raised.value.retryable) == (problem, False)
    assert not any("again in" in line for line in messages)
    assert left(directory) == []


def test_at_most_three_pulls_per_registry_run_at_once(directory: Path) -> None:
    release = threading.Event()

    async def pull(number: int) -> None:
        store = ImageStore(directory, budget_gib=1)  # as if of another process: its locks are its own
        with pytest.raises(ImageUnavailable):
            await store.ensure(f"{refusing.address}/x{number}")

    async def scenario() -> None:
        pulls = [asyncio.create_task(pull(number)) for number in range(8)]
        await wait_until_async(lambda: len(refusing.requests) == 3)
        for _ in range(20):  # time for a fourth to come, were it let
            await asyncio.sleep(0.02)
        assert len(refusing.requests) == 3
        release.set()
        await asyncio.gather(*pulls)

    with answering([404], hold=release) as refusing:
        asyncio.run(scenario())
    assert refusing.at_once == 3
    assert left(directory) == []


@pytest.mark.parametrize("as_list", [False, True])
def test_other_architecture_is_refused_before_the_download(
    store: ImageStore, directory: Path, registry: Registry, tmp_path: Path, as_list: bool
) -> None:
    other = "arm64" if ARCHITECTURE != "arm64" else "amd64"
    layout = make_layout(tmp_path / "layout", [LAYER], architecture=other)
    name = push(make_list(layout, other) if as_list else layout, f"{registry.address}/other:v{as_list:d}")
    error = refused(store, name)
    assert error.problem == "other_architecture"
    assert ("no image for this machine" if as_list else f"linux/{other}") in str(error)
    assert ARCHITECTURE in str(error)
    assert left(directory) == []


def test_image_list_yields_the_image_for_this_machine(
    store: ImageStore, registry: Registry, tmp_path: Path
) -> None:
    layout = make_list(make_layout(tmp_path / "layout", [LAYER]), ARCHITECTURE)
    image = asyncio.run(store.ensure(push(layout, f"{registry.address}/several:v1")))
    assert image.architecture == ARCHITECTURE


def test_layer_changed_in_the_registry_is_damaged(
    store: ImageStore, directory: Path, registry: Registry, tmp_path: Path
) -> None:
    layer = tar(entry("spoiled", b"x" * 1000))
    name = push(make_layout(tmp_path / "layout", [layer]), f"{registry.address}/spoiled:v1")
    stored = registry.service.folder / "images"
    data = next(stored.rglob(f"blobs/sha256/*/{hashlib.sha256(gz(layer)).hexdigest()}/data"))
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    assert refused(store, name).problem == "damaged_image"
    assert left(directory) == []


def test_plain_http_needs_loopback_or_permission() -> None:
    plain = ("--tls-verify=false",)
    assert from_registry(parse("localhost:5000/x"), frozenset()).flags == plain
    assert from_registry(parse("registry.lan:5000/x"), frozenset()).flags == ()
    assert from_registry(parse("registry.lan:5000/x"), frozenset({"registry.lan:5000"})).flags == plain


def test_missing_skopeo_error_names_the_install_command(
    store: ImageStore, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only = tmp_path / "bin"
    only.mkdir()
    for program in ("setpriv", "bwrap"):
        (only / program).symlink_to(str(shutil.which(program)))
    monkeypatch.setenv("PATH", str(only))
    with pytest.raises(ProviderUnavailable, match="apt-get install skopeo"):
        asyncio.run(store.ensure("localhost:1/x"))
