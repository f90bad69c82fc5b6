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
import os
import secrets
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from hone.sandbox.contract import ImageUnavailable, WriteContext
from hone.sandbox.images.buildah import Descriptor, is_installed, open_buildah, remove_builds
from hone.sandbox.images.content_store import ContentStore, gone, size
from hone.sandbox.images.dockerfile import DOCKERFILE, read_dockerfile
from hone.sandbox.images.engine_build import built_by_engine
from hone.sandbox.images.layers import disk_full, unpack_layer
from hone.sandbox.images.locks import POLL_S, Lock, Staging, disk_usage, lock, staging, wait_for_one
from hone.sandbox.images.records import Image, Layer, Record, read_image
from hone.sandbox.images.reference import parse
from hone.sandbox.images.skopeo import LAYOUT, Report, fetch, skopeo
from hone.sandbox.images.sources import Source, engine_url, find_source, from_daemon, from_registry
from hone.utils.concurrency import run_in_thread, task_group
from hone.utils.dockerfile import base_images

LAYERS_AT_ONCE = 4  # of one image
BUILDS_AT_ONCE = 4  # of all processes that share a store
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
        docker_url: engine for `docker-daemon:` and Dockerfiles. Default: $DOCKER_HOST, then its usual socket
            for `docker-daemon:`; for Dockerfiles buildah, if it is installed.
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
        if (Path(source) / DOCKERFILE).is_file() and not (Path(source) / "oci-layout").is_file():
            if not name:
                raise ImageUnavailable(f"{source} contains no name: give it one", problem="unknown_image")
            context = Path(source)
            return await self._build(lambda _: context, parse(name).name, report, network=True, renew=True)
        async with self._work() as made:
            found = await find_source(source, made, insecure=self._insecure, docker_url=self._docker_url)
            if not (name or found.suggested):
                raise ImageUnavailable(f"{source} contains no name: give it one", problem="unknown_image")
            return await self._bring(found, parse(name or found.suggested).name, made, report)

    async def build(
        self, reference: str, write_context: WriteContext, *, network: bool, report: Report = lambda _: None
    ) -> Image:
        """Return the image of this name, built from a Dockerfile when it is not stored.

        Concurrent calls share one build; cancelling the last one ends every process of the build.

        Args:
            network: whether its RUN instructions have the network of this machine; else they have none.
        Raises:
            ProviderUnavailable: there is no builder, or the Dockerfile cannot be built.
            ImageUnavailable: an image that it starts from cannot be fetched, or the disk is full.
        """

        def new_context(made: Staging) -> Path:
            context = made.directory / "context"
            write_context(context)
            return context

        name = parse(reference).name
        found = await asyncio.to_thread(self._content.find, name)
        return found or await self._share_pull(
            name, lambda: self._build(new_context, name, report, network=network, renew=False)
        )

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
                await run_in_thread(self._lay_out, image, made.directory / LAYOUT)
                (made.directory / "target").symlink_to(folder.absolute())
                target = f"oci-archive:target/{draft_name}:{image.name}"
                try:
                    await skopeo(["copy", "--quiet", f"oci:{LAYOUT}", target], image.name, made, report)
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
            to_bytes: default the budget; 0 removes every image that is not in use, and what builds keep.
        """
        limit = self._budget_bytes if to_bytes is None else to_bytes
        async with staging(self._content.staging) as made:
            if limit == 0:
                await remove_builds(self._content.builds, made)
            return len(await run_in_thread(self._content.clean, made, limit))

    @contextlib.contextmanager
    def use(self, image: Image) -> Iterator[None]:
        """Lock an image against eviction by any process. Raises ImageUnavailable when it was evicted."""
        held = self._content.hold(image.digest)
        if held is None:
            raise gone(image.name)
        with held:
            yield

    def _lay_out(self, image: Image, layout: Path) -> None:
        """Write an OCI image layout of one image, over the stored blobs."""
        manifest = self._content.blob(image.digest)
        (layout / "blobs").mkdir(parents=True)
        (layout / "blobs" / "sha256").symlink_to(self._content.blobs.resolve())
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        described = {
            "mediaType": OCI_MANIFEST,
            "digest": image.digest,
            "size": manifest.stat().st_size,
            "annotations": {"org.opencontainers.image.ref.name": "latest"},
        }
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))

    def _link_layers(self, image: Image, made: Staging) -> dict[str, Descriptor]:
        """Link the layers of a stored image into `made`; return their descriptors by diff id."""
        manifest = json.loads(self._content.blob(image.digest).read_bytes())
        config = json.loads(self._content.blob(manifest["config"]["digest"]).read_bytes())
        for layer in manifest["layers"]:
            blob = self._content.blob(layer["digest"])
            with contextlib.suppress(FileExistsError):
                os.link(blob, made.blobs / blob.name)
        return dict(zip(config["rootfs"]["diff_ids"], manifest["layers"], strict=True))

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
            if parse(reference).is_built:
                raise gone(name)
            async with self._work() as made:
                return await self._bring(from_registry(parse(reference), self._insecure), name, made, report)

    async def _build(
        self,
        open_context: Callable[[Staging], Path],
        name: str,
        report: Report,
        *,
        network: bool,
        renew: bool,
    ) -> Image:
        """Build under the lock of the name, which all processes share."""
        locks = self._content.locks
        with await wait_for_one([self._content.name_lock(name)]):
            found = None if renew else await asyncio.to_thread(self._content.find, name)
            if found is not None:
                return found
            report("waiting for other builds")
            with await wait_for_one([locks / f"build-{number}" for number in range(BUILDS_AT_ONCE)]):
                async with self._work() as made:
                    context = await run_in_thread(open_context, made)
                    if self._docker_url or not is_installed():
                        return await self._build_by_engine(context, name, made, report, network=network)
                    return await self._build_by_buildah(context, name, made, report, network=network)

    async def _build_by_engine(
        self, context: Path, name: str, made: Staging, report: Report, *, network: bool
    ) -> Image:
        url = engine_url(self._docker_url)
        async with built_by_engine(url, context, made, network=network) as tag:
            return await self._bring(from_daemon(tag, url), name, made, report)

    async def _build_by_buildah(
        self, context: Path, name: str, made: Staging, report: Report, *, network: bool
    ) -> Image:
        instructions = await asyncio.to_thread(read_dockerfile, context, network=network)
        with contextlib.ExitStack() as bases:
            needed: dict[str, Image] = {}
            for base in base_images(instructions):
                needed[base] = await self.ensure(base, report=report)
                bases.enter_context(self.use(needed[base]))
            report("building")
            async with open_buildah(self._content.builds, made, self._budget_bytes) as builder:
                ids: dict[str, str] = {}
                known: dict[str, Descriptor] = {}
                for base, image in needed.items():
                    source = made.new_directory("base")
                    await run_in_thread(self._lay_out, image, source)
                    ids[base] = await builder.add_image(source, image.name)
                    known |= await run_in_thread(self._link_layers, image, made)
                built = await builder.build(context, ids, network=network)
                digest = await builder.write_blobs(built, known)
            return await self._publish(digest, name, name, made, report)

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
        return await self._publish(digest, source.name, name, made, report)

    async def _publish(self, digest: str, source: str, name: str, made: Staging, report: Report) -> Image:
        """Unpack and publish an image whose blobs are in `made`."""
        record = await asyncio.to_thread(read_image, source, digest, made.blobs)
        with contextlib.ExitStack() as pins:
            record = await self._unpack(record, source, made, pins, report)
            return await run_in_thread(self._content.publish, record, name, made, self._budget_bytes)

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
