from __future__ import annotations

from pathlib import Path

import pytest

from tests.e2e.small_run import RECIPE, hone, sets


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small quickstart."""
    run_dir = tmp_path_factory.mktemp("quickstart") / "run"
    hone("quickstart", str(RECIPE), *sets(run_dir))
    return run_dir
