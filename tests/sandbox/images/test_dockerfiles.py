"""Dockerfiles are built without a daemon, and a sandbox of each has what its author wrote."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.images import ImageStore
from hone.sandbox.settings import SandboxSettings
from tests.sandbox.images.building import copied, write_context
from tests.sandbox.images.dockerfiles import BASE, TYPICAL
from tests.services.image import base_archive
from tests.services.process import require

pytestmark = [pytest.mark.sandbox, pytest.mark.full, pytest.mark.timeout(1200)]


@pytest.fixture(scope="module")
def cache(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("buildah", "runc")
    cache = tmp_path_factory.mktemp("cache")
    store = ImageStore(cache / "images", budget_gib=4)
    asyncio.run(store.import_(str(base_archive()), name=BASE))
    return cache


@pytest.mark.parametrize("name", TYPICAL)
def test_typical_dockerfile_becomes_a_sandbox(name: str, cache: Path, tmp_path: Path) -> None:
    typical = TYPICAL[name]
    context = write_context(tmp_path / "context", typical.text, typical.files)
    image = f"docker://localhost/hone/typical:{list(TYPICAL).index(name)}"

    async def run() -> str:
        async with make_provider(SandboxSettings(cache_dir=cache)) as provider:
            await provider.build(image, copied(context), network=False)
            async with await provider.start(SandboxSpec(image=image)) as sandbox:
                return (await sandbox.exec(typical.command)).text

    assert asyncio.run(run()) == typical.prints
