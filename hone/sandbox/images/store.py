"""The images of one machine: fetched by skopeo, unpacked once per layer, shared by all processes of a user.

ensure(name) -> Image        stored already, or pulled: fetch -> unpack missing layers -> publish
use(image)                   locked against eviction while sandboxes run on it
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import itertools
import json
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.content_store import ContentStore, gone, size
from hone.sandbox.images.layers import disk_full, unpack_layer
from hone.sandbox.images.locks import POLL_S, Lock, Staging, disk_usage, lock, staging, wait_for_one
from hone.sandbox.images.records import Image, Layer, Record, read_image
from hone.sandbox.images.reference import parse
from hone.sandbox.images.skopeo import LAYOUT, Report, fetch, skopeo
from hone.sandbox.images.sources import Source, from_registry, open_source
from hone.utils.concurrency import run_in_thread, task_group

LAYERS_AT_ONCE = 4  # of one image
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(slots=True)
class _SharedPull:
    """A pull that several callers of this process wait for."""

    task: asyncio.Task[Image]
    waiting: int = 0


class ImageStore:
    """Images below `directory`, which many processes may share.

    Opening it removes the unfinished files of dead processes.

    Args:
        budget_gib: GiB of all images together; a pull may exceed it until it ends, then the least recently
            used images are removed, never those in use.
        insecure_registries: HOST[:PORT] that need no TLS; registries on this machine never need it.
        docker_url: engine for `docker-daemon:` and Dockerfiles; default $DOCKER_HOST, then its usual socket.
    """

    def __init__(
        self,
        directory: Path,
        *,
        budget_gib: float,
        insecure_registries: Collection[str] = (),
        docker_url: str = "",
    ) -> None:
        self._content = ContentStore(directory)
        self._budget_bytes = int(budget_gib * 2**30)
        self._insecure = frozenset(insecure_registries)
        self._docker_url = docker_url
        self._pulls: dict[str, _SharedPull] = {}

    async def ensure(self, reference: str, *, report: Report = lambda _: None) -> Image:
        """Return the image of this name, pulled when it is not stored. Concurrent calls share one pull.

        Raises ImageUnavailable, and ProviderUnavailable when a program that it needs is missing.
        """
        name = parse(reference).name
        found = await asyncio.to_thread(self._content.find, name)
        return found or await self._share_pull(name, lambda: self._pull(reference, name, report, renew=False))

    async def pull(self, reference: str, *, name: str = "", report: Report = lambda _: None) -> Image:
        """Pull from the registry even when the image is stored; store it as `name`. Raises like `ensure`."""
        return await self._pull(reference, parse(name or reference).name, report, renew=True)

    async def import_(self, source: str, *, name: str = "", report: Report = lambda _: None) -> Image:
        """Take an image from any source (see `hone.sandbox.images.sources`). Raises like `ensure`.

        Args:
            name: default the one in the source.
        """
        async with self._work() as made:
            opened = open_source(source, made, insecure=self._insecure, docker_url=self._docker_url)
            async with opened as found:
                if not (name or found.suggested):
                    raise ImageUnavailable(f"{source} contains no name: give it one", problem="unknown_image")
                return await self._bring(found, parse(name or found.suggested).name, made, report)

    async def export(self, reference: str, file: Path, *, report: Report = lambda _: None) -> Image:
        """Write a stored image as an OCI archive, atomically and with the same digest.

        Raises ImageUnavailable when it is not stored or its blobs are damaged.
        """
        image = await asyncio.to_thread(self._content.find, parse(reference).name)
        if image is None:
            raise ImageUnavailable(f"{parse(reference).name} is not on this machine", problem="unknown_image")
        folder, draft_name = file.parent, f".hone-{secrets.token_hex(4)}.part"
        with self.use(image):
            async with staging(self._content.staging) as made:
                await run_in_thread(self._lay_out, image, made, folder)
                try:
                    await skopeo(
                        [
                            *("copy", "--quiet", "--src-shared-blob-dir", "blobs", f"oci:{LAYOUT}"),
                            f"oci-archive:target/{draft_name}:{image.name}",
                        ],
                        image.name,
                        made,
                        report,
                    )
                    await run_in_thread((folder / draft_name).rename, file)
                finally:
                    await run_in_thread((folder / draft_name).unlink, missing_ok=True)
        return image

    async def find(self, reference: str) -> Image | None:
        """Return the image of this name, or None when it is not stored."""
        return await asyncio.to_thread(self._content.find, parse(reference).name)

    async def list(self) -> list[Image]:
        """Return every image, once for each of its names, the most recently used first."""
        return await asyncio.to_thread(self._content.list)

    async def taken_bytes(self) -> int:
        """Return the bytes on disk of all images."""
        return size(await asyncio.to_thread(self._content.all_records))

    async def prune(self, to_bytes: int | None = None) -> int:
        """Remove the least recently used images until the rest fits; return their number.

        Args:
            to_bytes: default the budget; 0 removes every image that is not in use.
        """
        limit = self._budget_bytes if to_bytes is None else to_bytes
        async with staging(self._content.staging) as made:
            return len(await run_in_thread(self._content.clean, made, limit))

    @contextlib.contextmanager
    def use(self, image: Image) -> Iterator[None]:
        """Lock an image against eviction by any process. Raises ImageUnavailable when it was evicted."""
        held = self._content.hold(image.digest)
        if held is None:
            raise gone(image.name)
        with held:
            yield

    def _lay_out(self, image: Image, made: Staging, target: Path) -> None:
        """Write to `made` an OCI image layout of one image over the stored blobs, and a link to `target`."""
        manifest = self._content.blob(image.digest)
        made.blobs.rmdir()
        made.blobs.symlink_to(self._content.blobs.resolve())
        (made.directory / "target").symlink_to(target.absolute())
        layout = made.directory / LAYOUT
        layout.mkdir()
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        described = {"mediaType": OCI_MANIFEST, "digest": image.digest, "size": manifest.stat().st_size}
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))

    async def _share_pull(self, name: str, start: Callable[[], Awaitable[Image]]) -> Image:
        """Share one task per name; cancelling its last caller cancels it."""
        if name not in self._pulls:
            self._pulls[name] = _SharedPull(task=asyncio.ensure_future(start()))  # pyright: ignore
        shared = self._pulls[name]
        shared.waiting += 1
        try:
            return await asyncio.shield(shared.task)
        finally:
            shared.waiting -= 1
            if not shared.waiting:
                del self._pulls[name]
                if shared.task.cancel():
                    await asyncio.wait([shared.task])

    async def _pull(self, reference: str, name: str, report: Report, *, renew: bool) -> Image:
        """Pull under the lock of the name, which all processes share."""
        with await wait_for_one([self._content.name_lock(name)]):
            found = None if renew else await asyncio.to_thread(self._content.find, name)
            if found is not None:
                return found
            async with self._work() as made:
                return await self._bring(from_registry(parse(reference), self._insecure), name, made, report)

    @contextlib.asynccontextmanager
    async def _work(self) -> AsyncGenerator[Staging]:
        """Yield a staging directory; after a failure, remove everything that was made in it or from it."""
        try:
            async with staging(self._content.staging) as made:
                yield made
        except BaseException as error:
            async with staging(self._content.staging) as made:
                await run_in_thread(self._content.clean, made)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full("the disk is full") from error
            raise

    async def _bring(self, source: Source, name: str, made: Staging, report: Report) -> Image:
        """Fetch, unpack and publish an image."""
        content = self._content
        digest = await fetch(source, made, blobs=content.blobs, locks=content.locks, report=report)
        record = await asyncio.to_thread(read_image, source.name, digest, made.blobs)
        with contextlib.ExitStack() as pins:
            record = await self._unpack(record, source.name, made, pins, report)
            return await run_in_thread(content.publish, record, name, made, self._budget_bytes)

    async def _unpack(
        self, record: Record, image: str, made: Staging, pins: contextlib.ExitStack, report: Report
    ) -> Record:
        """Unpack every missing layer, lock all until `pins` close, and return the record with their sizes."""
        sizes = {
            layer.diff_id: layer.bytes
            for known in await asyncio.to_thread(self._content.all_records)
            for layer in known.layers
        }
        gate = asyncio.Semaphore(LAYERS_AT_ONCE)
        count = itertools.count(1)

        async def one(layer: Layer) -> Layer:
            async with gate:
                pins.enter_context(await self._layer(layer, image, made))
            report(f"{next(count)} of {len(record.layers)} layers unpacked")
            path = self._content.layer(layer.diff_id)
            return replace(layer, bytes=sizes.get(layer.diff_id) or await run_in_thread(disk_usage, path))

        async with task_group() as group:
            tasks = [group.create_task(one(layer)) for layer in record.layers]
        return replace(record, layers=tuple(task.result() for task in tasks))

    async def _layer(self, layer: Layer, image: str, made: Staging) -> Lock:
        """Return a shared lock on a layer, which is unpacked here unless another process does it."""
        path = self._content.layer(layer.diff_id)
        while True:
            if (pin := lock(path, shared=True)) is not None:
                return pin
            making = lock(self._content.locks / f"layer-{path.name}", make=True)
            if making is not None:
                with making:
                    if not path.exists():
                        fresh = made.new_directory("layer")
                        blob = made.blobs / layer.blob.removeprefix("sha256:")
                        budget = self._budget_bytes
                        await unpack_layer(blob, layer.diff_id, fresh, image=image, budget_bytes=budget)
                        pin = lock(fresh, shared=True)
                        assert pin is not None, "no other process knows it"
                        fresh.rename(path)
                        return pin
            await asyncio.sleep(POLL_S)
