"""Images are pulled once, shared, locked while in use and evicted above a budget."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable
from hone.sandbox.images import Image, ImageStore
from hone.sandbox.images.locks import lock
from tests.sandbox.images.oci import digest, entry, gz, make_layout, plain, push, tar
from tests.sandbox.images.traces import left
from tests.services.registry import Registry

pytestmark = pytest.mark.sandbox

BASE = tar(entry("base", b"base" * 1000))
MIB = 1 << 20


def pushed(registry: Registry, tmp_path: Path, name: str, *layers: bytes, **options: object) -> str:
    layout = make_layout(tmp_path / f"layout-{name.replace(':', '-')}", layers, **options)  # pyright: ignore
    return push(layout, f"{registry.address}/{name}")


def large(name: str, mib: int = 4) -> bytes:
    return tar(entry(name, os.urandom(mib * MIB)))


def test_pulled_image_has_its_configuration(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    config = {
        "Env": ["PATH=/x:/bin", "EMPTY=", "EQUAL=a=b"],
        "WorkingDir": "/testbed",
        "User": "agent:staff",
        "Entrypoint": ["/never"],
        "Cmd": ["never"],
    }
    name = pushed(registry, tmp_path, "configured:v1", BASE, config=config)
    image = asyncio.run(store.ensure(f"docker://{name}"))
    assert image.name == name
    assert image.env == {"PATH": "/x:/bin", "EMPTY": "", "EQUAL": "a=b"}
    assert (image.workdir, image.user) == ("/testbed", "agent:staff")
    assert [sorted(path.name for path in layer.iterdir()) for layer in image.layers] == [["base"]]
    assert image.bytes > 4000
    assert asyncio.run(store.list()) == [image]


def test_stored_image_is_not_pulled_again(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    name = pushed(registry, tmp_path, "once:v1", BASE)
    image = asyncio.run(store.ensure(name))
    before = image.layers[0].stat().st_ino
    newer = pushed(registry, tmp_path, "twice:v1", BASE, tar(entry("more", b"x")))
    push(tmp_path / "layout-twice-v1", name)
    assert asyncio.run(store.ensure(name)).digest == image.digest
    renewed = asyncio.run(store.pull(name))
    assert renewed.digest == asyncio.run(store.ensure(newer)).digest != image.digest
    assert renewed.layers[0].stat().st_ino == before


def test_shared_layers_are_unpacked_and_stored_once(
    store: ImageStore, directory: Path, registry: Registry, tmp_path: Path
) -> None:
    names = [
        pushed(registry, tmp_path, f"shared-{n}:v1", BASE, tar(entry(f"own-{n}", b"x"))) for n in range(3)
    ]
    images = [asyncio.run(store.ensure(name)) for name in names]
    assert len({image.layers[0] for image in images}) == 1
    assert len(list((directory / "layers").iterdir())) == 4
    assert len(list((directory / "blobs/sha256").iterdir())) == 4 + 3 * 2
    assert asyncio.run(store.taken_bytes()) < sum(image.bytes for image in images)


def test_stored_layer_is_not_fetched_again(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    base = large("base")
    first = pushed(registry, tmp_path, "first:v1", base)
    second = pushed(registry, tmp_path, "second:v1", base, tar(entry("own", b"x")))
    asyncio.run(store.ensure(first))
    hexadecimal = hashlib.sha256(gz(base)).hexdigest()
    shutil.rmtree(next((registry.service.folder / "images").rglob(f"blobs/sha256/*/{hexadecimal}")))
    assert len(asyncio.run(store.ensure(second)).layers) == 2


def test_equal_layers_are_mounted_once(store: ImageStore, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "layout", [BASE, tar(entry("a", b"x")), BASE])
    image = asyncio.run(store.import_(str(layout), name="equal"))
    assert [next(layer.iterdir()).name for layer in image.layers] == ["a", "base"]


def test_concurrent_calls_share_one_pull(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    name = pushed(registry, tmp_path, "together:v1", large("x"))
    messages: list[str] = []

    async def many() -> list[Image]:
        return list(await asyncio.gather(*(store.ensure(name, report=messages.append) for _ in range(20))))

    images = asyncio.run(many())
    assert len({image.digest for image in images}) == 1
    assert messages.count("1 of 1 layers unpacked") == 1


def test_pull_survives_one_cancelled_caller(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    name = pushed(registry, tmp_path, "cancelled:v1", large("x"))

    async def scenario() -> Image:
        started = asyncio.Event()
        first = asyncio.create_task(store.ensure(name, report=lambda _: started.set()))
        await started.wait()
        second = asyncio.create_task(store.ensure(name))
        await asyncio.sleep(0)
        first.cancel()
        with pytest.raises(asyncio.CancelledError):
            await first
        return await second

    assert asyncio.run(scenario()).name == name


@pytest.mark.parametrize("word", ["waiting", "fetched", "unpacked"])
def test_cancelled_pull_leaves_nothing(
    store: ImageStore, directory: Path, registry: Registry, tmp_path: Path, word: str
) -> None:
    other = large("x")
    name = pushed(registry, tmp_path, f"alone-{word}:v1", BASE, other)

    async def scenario() -> None:
        reached = asyncio.Event()
        task = asyncio.create_task(
            store.ensure(name, report=lambda text: reached.set() if word in text else None)
        )
        await asyncio.wait_for(reached.wait(), 60)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    with contextlib.ExitStack() as stack:
        if word == "unpacked":  # one of two layers, while another process has locked the other
            making = lock(directory / "locks" / f"layer-{digest(other).removeprefix('sha256:')}", make=True)
            assert making is not None
            stack.enter_context(making)
        asyncio.run(scenario())
    assert left(directory) == []
    assert asyncio.run(store.ensure(name)).name == name


_PULL = """
import asyncio, sys
from pathlib import Path
from hone.sandbox.images import ImageStore

async def main():
    store = ImageStore(Path(sys.argv[1]), budget_gib=1)
    images = [await store.ensure(name) for name in sys.argv[2:]]
    print(*(image.digest for image in images))

asyncio.run(main())
"""


def test_concurrent_processes_share_pulled_images(
    store: ImageStore, directory: Path, registry: Registry, tmp_path: Path
) -> None:
    names = [
        pushed(registry, tmp_path, f"race-{n}:v1", BASE, large("common"), large(str(n), 1)) for n in range(3)
    ]
    orders = [names, names[::-1], names]
    running = [
        subprocess.Popen([sys.executable, "-c", _PULL, directory, *order], stdout=subprocess.PIPE, text=True)
        for order in orders
    ]
    digests = [process.communicate(timeout=240)[0].split() for process in running]
    assert [process.returncode for process in running] == [0] * 3
    by_name = {
        frozenset(zip(order, found, strict=True)) for order, found in zip(orders, digests, strict=True)
    }
    assert len(by_name) == 1
    assert [place for place in left(directory) if place.startswith(("staging", "locks"))] == []
    assert len(list((directory / "records").iterdir())) == 3


def filled(tmp_path: Path, budget_mib: int) -> tuple[ImageStore, list[Image]]:
    """A store with images of 8 MiB each (4 packed, 4 unpacked), the first one used least recently."""
    store = ImageStore(tmp_path / "images", budget_gib=budget_mib / 1024)
    return store, [added(store, tmp_path, f"i{n}") for n in range(3)]


def added(store: ImageStore, tmp_path: Path, name: str, mib: int = 4) -> Image:
    layout = make_layout(tmp_path / name, [BASE, large(name, mib)], compress=plain)
    return asyncio.run(store.import_(str(layout), name=name))


def names(store: ImageStore) -> set[str]:
    return {image.name.rpartition("/")[2].removesuffix(":latest") for image in asyncio.run(store.list())}


def test_least_recently_used_image_is_evicted(tmp_path: Path) -> None:
    store, images = filled(tmp_path, 26)
    with store.use(images[0]):
        pass
    added(store, tmp_path, "i3")
    assert names(store) == {"i0", "i2", "i3"}
    assert len(list((tmp_path / "images/layers").iterdir())) == 4
    assert len(list((tmp_path / "images/blobs/sha256").iterdir())) == 4 + 2 * 3
    assert len(list((tmp_path / "images/names").iterdir())) == 3
    assert asyncio.run(store.taken_bytes()) <= 26 * MIB


def test_image_in_use_is_never_evicted(tmp_path: Path) -> None:
    store, images = filled(tmp_path, 26)
    with store.use(images[0]):
        elsewhere = ImageStore(tmp_path / "images", budget_gib=26 / 1024)
        added(elsewhere, tmp_path, "i3")
        assert names(store) == {"i0", "i2", "i3"}
        assert asyncio.run(elsewhere.prune(0)) == 2
        assert names(store) == {"i0"}
        assert all(layer.is_dir() for layer in images[0].layers)
    assert asyncio.run(store.prune(0)) == 1
    assert left(tmp_path / "images") == []


def test_evicted_image_can_be_pulled_again(store: ImageStore, registry: Registry, tmp_path: Path) -> None:
    name = pushed(registry, tmp_path, "evicted:v1", BASE)
    image = asyncio.run(store.ensure(name))
    asyncio.run(store.prune(0))
    with pytest.raises(ImageUnavailable, match="was removed") as raised, store.use(image):
        pass
    assert raised.value.retryable
    with store.use(asyncio.run(store.ensure(name))):
        assert image.layers[0].is_dir()


def test_too_large_image_evicts_no_other(tmp_path: Path) -> None:
    store, images = filled(tmp_path, 26)
    with store.use(images[1]), pytest.raises(ImageUnavailable, match=r"sandbox\.images_gib") as raised:
        added(store, tmp_path, "large", mib=10)
    assert (raised.value.problem, raised.value.retryable) == ("disk_full", False)
    assert names(store) == {"i0", "i1", "i2"}
    assert len(list((tmp_path / "images/layers").iterdir())) == 4
    assert list((tmp_path / "images/staging").iterdir()) == []


def test_images_survive_a_reopening(tmp_path: Path) -> None:
    store, images = filled(tmp_path, 1000)
    again = ImageStore(tmp_path / "images", budget_gib=1)
    assert asyncio.run(again.list()) == asyncio.run(store.list())
    assert asyncio.run(again.find("i1")) == images[1]
    assert json.loads(next((tmp_path / "images/records").iterdir()).read_text())["architecture"]
