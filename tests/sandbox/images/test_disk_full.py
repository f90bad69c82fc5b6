"""A disk that fills up: a typed error and no partial files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.sandbox.images.oci import entry, make_layout, plain, tar

pytestmark = pytest.mark.sandbox

_IMPORT = """
import asyncio, sys
from pathlib import Path
from hone.sandbox import ImageUnavailable
from hone.sandbox.images import ImageStore
from tests.sandbox.images.traces import left

store = ImageStore(Path(sys.argv[1]) / "images", budget_gib=1)
try:
    asyncio.run(store.import_(sys.argv[2], name="large"))
except ImageUnavailable as error:
    names_setting = "sandbox.images_gib" in str(error)
    print(error.problem, error.retryable, names_setting, left(Path(sys.argv[1]) / "images"))
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
@pytest.mark.parametrize("size", ["3m", "6m", "10m"], ids=["fetching", "unpacking", "unpacking the last"])
def test_full_disk_leaves_no_partial_files(tmp_path: Path, size: str) -> None:
    files = [entry(f"d/{number}", os.urandom(5000)) for number in range(800)]
    layout = make_layout(
        tmp_path / "layout", [tar(*files), tar(entry("second", os.urandom(1 << 20)))], compress=plain
    )
    disk = tmp_path / "disk"
    disk.mkdir()
    script = f'mount -t tmpfs -o size={size},mode=0700 none "$1" && exec "$0" -c "$3" "$1" "$2"'
    command = ["unshare", "--mount", "bash", "-c", script, sys.executable, str(disk), str(layout), _IMPORT]
    done = subprocess.run(command, capture_output=True, text=True, timeout=200)
    # asyncio says so of a child that ends while it is being killed
    errors = [line for line in done.stderr.splitlines() if not line.startswith("Unknown child process pid")]
    assert (done.stdout, errors) == ("disk_full False True []\n", [])
