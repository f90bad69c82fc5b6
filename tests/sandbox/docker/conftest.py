"""Private engines and settings for them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.sandbox.settings import SandboxSettings
from tests.services.engines import Engine
from tests.services.image import BASE_IMAGE


@pytest.fixture(params=["docker", pytest.param("podman", marks=pytest.mark.full)])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Docker, and podman in the full tier."""
    return request.getfixturevalue(request.param)


@pytest.fixture
def settings(engine: Engine, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    return settings_of(engine, tmp_path, tmp_path_factory.getbasetemp() / "cache")


def settings_of(engine: Engine, state: Path, cache: Path) -> SandboxSettings:
    return SandboxSettings(
        provider="docker",
        docker_url=engine.url,
        docker_image=BASE_IMAGE,
        state_dir=state / "state",
        cache_dir=cache,
        start_timeout_s=120,
    )
