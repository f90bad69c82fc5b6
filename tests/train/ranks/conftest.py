"""Two ranks for all tests that can share them: each imports PyTorch and transformers when it starts."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.train.ranks.gloo_ranks import Setup, open_setup


@pytest.fixture(scope="package")
def setup(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setup]:
    """The ranks of the tests in the group "ranks", which run in the order of their files.

    The first compares whole steps, and the last kills a rank: a `full` test, which runs before them, opens
    its own.
    """
    with open_setup(tmp_path_factory.mktemp("ranks")) as setup:
        yield setup
