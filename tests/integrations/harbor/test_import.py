"""The integration is imported only when it is used, and says what is missing."""

from __future__ import annotations

import importlib.metadata
import subprocess
import sys

import pytest


def _is_missing() -> bool:
    try:
        importlib.metadata.version("harbor")
    except importlib.metadata.PackageNotFoundError:
        return True
    return False


@pytest.mark.skipif(not _is_missing(), reason="harbor is installed here")
def test_missing_harbor_is_named_with_the_command_that_installs_it() -> None:
    command = [sys.executable, "-c", "import hone.integrations.harbor"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert "pip install 'harbor==0.25.*'" in done.stderr.splitlines()[-1]


def test_hone_imports_nothing_of_harbor() -> None:
    text = "import hone, hone.cli.app, hone.tasks.files, sys; assert 'harbor' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
