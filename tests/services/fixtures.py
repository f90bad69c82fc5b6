"""Fixtures: one service per test session (with pytest-xdist per worker), images loaded.

`tests/conftest.py` gives them to every test.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.services.engines import Engine, docker_engine, podman_engine
from tests.services.image import BASE_IMAGE, base_archive
from tests.services.registry import Registry, image_registry


@pytest.fixture(scope="session")
def docker() -> Iterator[Engine]:
    """A Docker engine that holds BASE_IMAGE."""
    with docker_engine() as engine:
        engine.load(base_archive())
        yield engine


@pytest.fixture(scope="session")
def podman() -> Iterator[Engine]:
    """podman's service; it holds BASE_IMAGE."""
    with podman_engine() as engine:
        engine.load(base_archive())
        yield engine


@pytest.fixture(scope="session")
def registry() -> Iterator[Registry]:
    """An empty registry."""
    with image_registry() as registry:
        yield registry


@pytest.fixture(scope="session")
def registry_image(registry: Registry) -> str:
    """The name of BASE_IMAGE in the registry."""
    return registry.push(base_archive(), BASE_IMAGE)
