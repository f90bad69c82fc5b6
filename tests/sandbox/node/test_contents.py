"""Layers and mounts of a client's machine: given once, shared, kept while used, never trusted."""

from __future__ import annotations

import asyncio
import hashlib
import io
import os
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hone.sandbox import Mount, SandboxError, SandboxSpec, trees
from hone.sandbox.client.provider import pack_spec
from hone.sandbox.node.contents import Contents
from hone.sandbox.remote.wire import CreateRequest
from hone.utils.http_client import bearer
from tests.sandbox.node.idle import IdleProvider
from tests.sandbox.node.served import NodeProvider, served
from tests.waiting import HeldFunction, wait_until_async


def _tree(folder: Path, name: str, text: str = "text") -> Path:
    path = folder / name
    path.mkdir()
    (path / "file").write_text(text)
    return path


def _archive(source: Path) -> bytes:
    file = io.BytesIO()
    trees.pack(source, file)
    return file.getvalue()


async def _chunks(data: bytes) -> AsyncIterator[bytes]:
    for start in range(0, len(data), 1000):
        yield data[start : start + 1000]


async def _put(contents: Contents, source: Path) -> str:
    digest = trees.digest(source)
    await contents.put(digest, _chunks(_archive(source)))
    return digest


def _contents(tmp_path: Path, bytes_max: int = 1 << 30) -> Contents:
    (tmp_path / "contents").mkdir()
    return Contents(tmp_path / "contents", bytes_max=bytes_max)


def _kept(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "contents").iterdir())


def test_uploaded_tree_is_stored_under_its_digest(tmp_path: Path) -> None:
    contents = _contents(tmp_path)
    digest = asyncio.run(_put(contents, _tree(tmp_path, "a")))
    assert contents.missing([digest, "0" * 64]) == ["0" * 64]
    assert (contents.path(digest) / "file").read_text() == "text"


def test_damaged_or_mislabelled_upload_leaves_nothing(tmp_path: Path) -> None:
    contents = _contents(tmp_path)
    data = _archive(_tree(tmp_path, "a"))
    for digest, sent in (("0" * 64, data), (trees.digest(tmp_path / "a"), data[:-600])):
        with pytest.raises(ValueError, match="digest"):
            asyncio.run(contents.put(digest, _chunks(sent)))
    hostile = b"not an archive" * 100
    digest = hashlib.sha256(hostile).hexdigest()
    with pytest.raises(SandboxError):
        asyncio.run(contents.put(digest, _chunks(hostile)))
    assert _kept(tmp_path) == []


def test_cancelled_upload_is_removed_after_its_unpacking_has_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    contents = _contents(tmp_path)
    source = _tree(tmp_path, "a")

    async def run() -> None:
        # one thread unpacks; in the other, what the upload does next comes before what the test does
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
        held = HeldFunction(monkeypatch, trees, "unpack")
        upload = asyncio.create_task(_put(contents, source))
        await held.begun()
        upload.cancel()
        for _ in range(10):  # the upload gets to whatever it does next
            await asyncio.sleep(0)
        kept = await asyncio.to_thread(_kept, tmp_path)
        held.release()
        with pytest.raises(asyncio.CancelledError):
            await upload
        assert len(kept) == 1

    asyncio.run(run())
    assert _kept(tmp_path) == []


def test_least_recently_used_unheld_content_is_deleted(tmp_path: Path) -> None:
    async def run() -> None:
        one = len(_archive(_tree(tmp_path, "size")))
        contents = _contents(tmp_path, bytes_max=2 * one)
        a, b, c, d = [await _put_held(contents, tmp_path, name) for name in "abcd"]
        assert _kept(tmp_path) == sorted([a, b, c, d])  # all in use
        await contents.release([b])
        await contents.release([a])
        assert _kept(tmp_path) == sorted([c, d])
        await contents.release([c])
        contents.path(c)
        assert _kept(tmp_path) == sorted([c, d])
        e = await _put(contents, _tree(tmp_path, "e", "eeee"))
        assert _kept(tmp_path) == sorted([d, e])  # d is held, e newer than c

    async def _put_held(contents: Contents, folder: Path, name: str) -> str:
        source = _tree(folder, name, name * 4)
        contents.retain([trees.digest(source)])
        return await _put(contents, source)

    asyncio.run(run())


def test_concurrent_uploads_of_one_tree_store_it_once(tmp_path: Path) -> None:
    async def run() -> None:
        contents = _contents(tmp_path)
        source = _tree(tmp_path, "a")
        await asyncio.gather(*(_put(contents, source) for _ in range(8)))
        assert _kept(tmp_path) == [trees.digest(source)]

    asyncio.run(run())


def test_layer_is_uploaded_once_for_many_sandboxes(tmp_path: Path) -> None:
    spec = SandboxSpec(
        layer=_tree(tmp_path, "layer"), mounts=(Mount(source=_tree(tmp_path, "mount"), target="/mnt/x"),)
    )

    async def run() -> None:
        provider = IdleProvider()
        async with served(provider, tmp_path / "state") as url, NodeProvider(url) as client:
            sandboxes = [await client.start(spec) for _ in range(3)]
            specs = [sandbox.spec for sandbox in provider.living]
            layers, mounts = {s.layer for s in specs}, {s.mounts for s in specs}
            assert (len(specs), len(layers), len(mounts)) == (3, 1, 1)
            assert specs[0].mounts[0].target == "/mnt/x"
            assert {sandbox.spec.layer for sandbox in sandboxes} == {spec.layer}

    asyncio.run(run())


@pytest.mark.parametrize("settled", [False, True])
def test_changed_tree_has_another_digest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settled: bool
) -> None:
    tree = _tree(tmp_path, "layer")
    (tree / "sub").mkdir()
    if settled:
        _let_an_hour_pass(monkeypatch)

    def tick() -> None:
        """Until what changes next gets a later time: the clocks of file systems go by milliseconds."""
        clock = tmp_path / "clock"
        clock.touch()
        began = clock.stat().st_mtime_ns
        while clock.stat().st_mtime_ns == began:
            clock.touch()

    changes: tuple[Callable[[], object], ...] = (
        lambda: (tree / "file").write_text("TEXT"),  # of the same size
        lambda: (tree / "file").chmod(0o700),
        lambda: (tree / "sub" / "new").touch(),
        lambda: (tree / "sub" / "new").rename(tree / "sub" / "name"),
        lambda: (tree / "sub" / "name").unlink(),
    )
    for change in changes:
        before = asyncio.run(_layer_digest(tree))
        assert asyncio.run(_layer_digest(tree)) == before == trees.digest(tree)
        if settled:
            tick()
        change()
        assert asyncio.run(_layer_digest(tree)) == trees.digest(tree) != before


def test_digest_of_a_settled_tree_is_cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tree, read, digest = _tree(tmp_path, "layer"), list[Path](), trees.digest

    def watched(source: Path) -> str:
        read.append(source)
        return digest(source)

    monkeypatch.setattr(trees, "digest", watched)
    # a file's time may be set to any other, and says nothing: only that of its change does
    os.utime(tree / "file", ns=(0, 0))
    for _ in range(3):
        asyncio.run(_layer_digest(tree))
    assert len(read) == 3
    _let_an_hour_pass(monkeypatch)
    for _ in range(3):
        asyncio.run(_layer_digest(tree))
    assert len(read) == 4


async def _layer_digest(tree: Path) -> str | None:
    body, _ = await pack_spec(SandboxSpec(layer=tree))
    return body.layer


def _let_an_hour_pass(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(time, "time_ns", lambda: int((time.time() + 3600) * 1e9))


def test_upload_not_named_by_the_spec_is_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(IdleProvider(), tmp_path / "state") as url, NodeProvider(url) as client:
            body, _ = await pack_spec(SandboxSpec(layer=_tree(tmp_path, "layer")))
            made = await client.client.create(CreateRequest(spec=body), key="k")
            other = _tree(tmp_path, "other", "other")
            address = f"{url}/v1/sandboxes/{made.id}/content/{trees.digest(other)}"
            headers = bearer(made.capability)
            async with client.session.put(address, data=_archive(other), headers=headers) as response:
                assert response.status == 400
            async with client.session.post(
                f"{url}/v1/sandboxes/{made.id}/exec", data=b'{"command": "true"}', headers=headers
            ) as response:
                assert (await response.json())["error"] == "the sandbox is not started yet"

    asyncio.run(run())


def test_sandbox_without_its_contents_expires(tmp_path: Path) -> None:
    async def run() -> None:
        async with served(IdleProvider(), tmp_path / "state") as url, NodeProvider(url) as client:
            body, _ = await pack_spec(SandboxSpec(layer=_tree(tmp_path, "layer")))
            await client.client.create(CreateRequest(spec=body, ttl_s=0.3), key="k")

            async def is_gone() -> bool:
                return not (await client.client.info()).sandboxes

            await wait_until_async(is_gone)

    asyncio.run(run())
