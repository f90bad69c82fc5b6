"""Providers under attack, one for each kind of sandbox and test file."""

from __future__ import annotations

import asyncio
import gc
import json
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import Provider, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from tests.attacks.sandbox.attack_target import AttackTarget
from tests.services.image import base_archive

PLACES = ("namespaces-host", "namespaces-image", "namespaces-restored")
# What these attack differs between the host, an image and a snapshot. The rest does not: `make test` attacks
# it in an image only.
HOST_MATTERS = ("test_files", "test_privileges", "test_transfers")
# In those files, what is the same on the host all the same: how much is read, and how long.
HOST_IS_ALIKE = (
    "test_changing_tree_stays_in_its_target",
    "test_download_of_a_growing_file_ends",
    "test_download_of_thousands_of_circular_links_ends",
    "test_sparse_tebibyte_file_is_not_read",
    "test_tree_deeper_than_any_path_is_refused",
    "test_undecodable_names_are_kept",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests here: they start sandboxes, and their controls run as root."""
    here = Path(__file__).parent
    for item in items:
        if here in item.path.parents:
            item.add_marker(pytest.mark.sandbox)
            item.add_marker(pytest.mark.skipif(os.geteuid() != 0, reason="the controls need root"))
            callspec = getattr(item, "callspec", None)  # of parametrized tests
            place = None if callspec is None else callspec.params.get("attacked")
            alike = item.path.stem not in HOST_MATTERS or getattr(item, "originalname", "") in HOST_IS_ALIKE
            if place in ("namespaces-host", "namespaces-restored") and alike:
                item.add_marker(pytest.mark.full)


@pytest.fixture(scope="module")
def runner() -> Iterator[asyncio.Runner]:
    with asyncio.Runner() as runner:
        yield runner


@pytest.fixture(scope="session")
def rootfs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the base image's only layer, unpacked."""
    directory = tmp_path_factory.mktemp("rootfs")
    with tarfile.open(base_archive()) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        layer = archive.extractfile(json.load(manifest)[0]["Layers"][0])
        with tarfile.open(fileobj=layer) as tar:
            tar.extractall(directory, filter="fully_trusted")
    directory.chmod(0o755)
    return directory


@pytest.fixture(scope="module", params=PLACES)
def attacked(
    request: pytest.FixtureRequest, runner: asyncio.Runner, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[AttackTarget]:
    place: str = request.param
    image = f"rootfs:{request.getfixturevalue('rootfs')}" if place == "namespaces-image" else "host"
    spec = SandboxSpec(image=image)
    base = tmp_path_factory.mktemp("hone")
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    provider = make_provider(settings)
    gc.collect()  # descriptors are counted: what other tests left is not to be closed in the midst of one
    runner.run(provider.__aenter__())
    if place == "namespaces-restored":
        spec = SandboxSpec(snapshot=base / "snapshot")
        runner.run(_take_snapshot(provider, base / "snapshot"))
    yield AttackTarget(runner=runner, provider=provider, spec=spec, state=base / "state")
    runner.run(provider.__aexit__(None, None, None))
    assert list((base / "state").iterdir()) == []


async def _take_snapshot(provider: Provider, target: Path) -> None:
    """Take the snapshot of a sandbox whose files try to get rights."""
    async with await provider.start(SandboxSpec()) as sandbox:
        await sandbox.exec("cp /bin/cat cat; chmod 6755 cat; ln -s / root; mkdir -m 2777 group; mkfifo p")
        await sandbox.snapshot(target)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """Return a world-readable file of the host."""
    tmp_path.chmod(0o755)
    path = tmp_path / "secret"
    path.write_text(f"secret {os.urandom(16).hex()}")
    return path
