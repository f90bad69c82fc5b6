"""Real services for every test that asks for one, and what counts as a test of seconds."""

import os
from pathlib import Path

import pytest
from hypothesis import settings

from tests.services.fixtures import docker, podman, registry

__all__ = ["docker", "podman", "registry"]

# "fast" draws the same examples in every run, so that only a change turns a test red; `make test-full`
# draws new ones. No deadline: on a busy machine any example may take longer than 200 ms.
settings.register_profile("fast", max_examples=25, derandomize=True, deadline=None)
settings.register_profile("full", max_examples=200, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "fast"))

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
# In these folders, but on virtual time or without any server: run with the fast tests.
QUICK = (
    "sandbox/node/test_errors_and_tokens.py",
    "sandbox/pool/test_chance.py",
    "sandbox/pool/test_leases.py",
    "sandbox/pool/test_placement.py",
    "sandbox/pool/test_pool.py",
)
# Each wait there has a bound of its own; together, or as attacks that are all graded first, they take longer.
PATIENT = ("attacks/grading", "chaos")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        quick = str(item.path.relative_to(HERE)) in QUICK
        if not quick and any(item.path.is_relative_to(HERE / folder) for folder in LONG):
            item.add_marker(pytest.mark.sandbox)
        if any(item.path.is_relative_to(HERE / folder) for folder in PATIENT):
            item.add_marker(pytest.mark.timeout(900))
