"""The conformance suite on an engine that speaks the Docker Engine API."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from hone.sandbox import make_provider
from hone.sandbox.conformance.suite import Run, open_provider
from hone.sandbox.settings import SandboxSettings
from tests.services.engines import Engine
from tests.services.image import BASE_IMAGE


@contextmanager
def run_on(engine: Engine, state: Path) -> Iterator[Run]:
    """Afterwards nothing may be left: no state, no container."""
    settings = SandboxSettings(
        provider="docker",
        docker_url=engine.url,
        docker_image=BASE_IMAGE,
        state_dir=state,
        start_timeout_s=120,
    )
    with open_provider(make_provider(settings)) as run:
        yield run
    assert list(state.iterdir()) == []
    with engine.client() as client:
        assert client.get("/containers/json?all=1").json() == []
