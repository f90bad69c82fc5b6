"""Real services for every test that asks for one, and what counts as a test of seconds."""

from pathlib import Path

import pytest
from hypothesis import settings

from tests.services.fixtures import docker, podman, registry

__all__ = ["docker", "podman", "registry"]

# Outside of CI, hypothesis fails an example above 200 ms; on a busy machine any may take longer.
settings.register_profile("unhurried", deadline=None)
settings.load_profile("unhurried")

HERE = Path(__file__).parent
# Servers, services and state machines: run with the tests of real sandboxes, several at a time.
LONG = (
    "policy/engines",
    "sandbox/node",
    "sandbox/pool",
    "sandbox/images",
    "sandbox/docker",
    "attacks",
    "chaos",
    "services",
)
# Each wait there has a bound of its own; together, or as attacks that are all graded first, they take longer.
PATIENT = ("attacks/grading", "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if any(item.path.is_relative_to(HERE / folder) for folder in LONG):
            item.add_marker(pytest.mark.sandbox)
        if any(item.path.is_relative_to(HERE / folder) for folder in PATIENT):
            item.add_marker(pytest.mark.timeout(900))
