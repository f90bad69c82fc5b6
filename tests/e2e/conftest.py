from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.e2e.small_run import RECIPE, hone, sets


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small quickstart, one for all workers."""
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    run_dir = shared / "quickstart" / "run"
    with FileLock(shared / "quickstart.lock"):
        if not (run_dir / "report.json").is_file():
            hone("quickstart", str(RECIPE), *sets(run_dir))
    return run_dir
