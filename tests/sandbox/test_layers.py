"""Layers on file systems that cannot translate owners are copied; sandboxes see the same files."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sandbox

_MOUNT = "mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged"
_USE = """
import asyncio, sys
from pathlib import Path
from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings

async def main():
    base = Path.cwd()
    settings = SandboxSettings(state_dir=base / "state", cache_dir=base.parent / "cache")
    async with make_provider(settings) as provider:
        async with await provider.start(SandboxSpec(layer=base / "merged")) as sandbox:
            command = "mountpoint /testbed; cat sub/file; echo new > sub/file; rm -r sub; mkdir sub; ls -l"
            print((await sandbox.exec(command, merge_stderr=True)).text)

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="mounts a file system")
def test_layer_on_an_overlay_is_copied_and_writable(tmp_path: Path) -> None:
    for name in ("lower/sub", "upper", "work", "merged"):
        (tmp_path / name).mkdir(parents=True)
    (tmp_path / "lower/sub/file").write_text("original\n")
    script = f'{_MOUNT} && exec "$0" -c "$1"'
    command = ["unshare", "--mount", "bash", "-c", script, sys.executable, _USE]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    kind, content, *listing = done.stdout.splitlines()
    assert (kind, content) == ("/testbed is not a mountpoint", "original")
    assert "agent" in listing[1]
    assert (tmp_path / "lower/sub/file").read_text() == "original\n"
    assert list((tmp_path / "upper").iterdir()) == []
