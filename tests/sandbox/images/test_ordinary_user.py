"""An ordinary user can pull, export, import and prune images as root can."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.sandbox.images.oci import entry, link, make_layout, push, tar
from tests.sandbox.ordinary_user import UID, run_as_ordinary_user
from tests.services.registry import Registry

pytestmark = pytest.mark.sandbox

_SCRIPT = """
import asyncio, os, stat, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hone.sandbox.images import ImageStore

async def main():
    store = ImageStore(Path.home() / "images", budget_gib=1)
    image = await store.ensure(sys.argv[1])
    lower, upper = image.layers
    print((lower / "etc/shadow").read_text(), (lower / "etc/shadow").stat().st_uid)
    info = (upper / "etc/gone").lstat()
    print(stat.S_ISCHR(info.st_mode), info.st_rdev, os.getxattr(upper / "opaque", "user.overlay.opaque"))
    await store.export(sys.argv[1], Path.home() / "x.tar")
    print((await store.import_(str(Path.home() / "x.tar"))).digest == image.digest)
    print(await store.prune(0), list((Path.home() / "images/layers").iterdir()))

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
def test_ordinary_user_pulls_exports_imports_and_prunes(registry: Registry, tmp_path: Path) -> None:
    lower = tar(entry("etc"), entry("etc/shadow", b"secret", mode=0, uid=0), link("etc/link", "/root"))
    upper = tar(entry("etc/.wh.gone", b""), entry("opaque"), entry("opaque/.wh..wh..opq", b""))
    name = push(make_layout(tmp_path / "layout", [lower, upper]), f"{registry.address}/user:v1")
    root = str(Path(__file__).parents[3])
    done = run_as_ordinary_user([sys.executable, "-c", _SCRIPT, name, root])
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"secret {UID}", "True 0 b'y'", "True", "1 []"]
