from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tests.e2e.small_run import sets
from tests.wheels import build_wheel, lend_extras, make_environment, run


@pytest.fixture(scope="session")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run directory of a small quickstart, one for all workers.

    It is made as a user makes it, by Hone's wheel in a fresh environment away from the repository.
    """
    own = tmp_path_factory.getbasetemp()
    shared = own.parent if "PYTEST_XDIST_WORKER" in os.environ else own
    run_dir = shared / "quickstart" / "run"
    with FileLock(shared / "quickstart.lock"):
        if not (run_dir / "report.json").is_file():
            run_dir.parent.mkdir(exist_ok=True)  # another worker may have failed in it
            command = make_environment(build_wheel(run_dir.parent), run_dir.parent / "venv")
            lend_extras(run_dir.parent / "venv")
            done = run(command, "quickstart", *sets(run_dir), cwd=run_dir.parent)
            assert done.returncode == 0, done.stderr
    return run_dir
