"""The images of one machine: fetched by skopeo, unpacked once per layer, shared by all processes of a user.

ensure(name) -> Image        here already, or pulled: fetch -> unpack missing layers -> publish
use(image)                   held against eviction while sandboxes run on it
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
from hone.sandbox.images.fetch import LAYOUT, fetch
from hone.sandbox.images.files import size_of
from hone.sandbox.images.layers import disk_full, unpack_layer
from hone.sandbox.images.locks import POLL_S, Lock, lock, lock_file, wait_for_one
from hone.sandbox.images.records import Image, Layer, Record, read_image
from hone.sandbox.images.reference import parse
from hone.sandbox.images.shelf import Shelf, gone, size
from hone.sandbox.images.skopeo import Say, skopeo
from hone.sandbox.images.sources import Source, from_registry, open_source
from hone.sandbox.images.staging import Staging, staging
from hone.utils.concurrency import run_in_thread

LAYERS_AT_ONCE = 4  # of one image
OCI_MANIFEST = "application/vnd.oci.image.manifest.v1+json"


@dataclass(slots=True)
class _Shared:
    """A pull that several callers of this process wait for."""

    task: asyncio.Task[Image]
    waiting: int = 0


class ImageStore:
    """Images below `directory`, which many processes may share.

    Opening it removes what dead processes left unfinished.

    Args:
        budget_gib: GiB that images may take together; a pull may exceed it by what it brings until it ends,
            then the least recently used images go, never those in use.
        insecure_registries: HOST[:PORT] that may be spoken to without TLS; those on this machine always may.
        docker_url: engine of `docker-daemon:` and of Dockerfiles; default $DOCKER_HOST, or its usual socket.
    """

    def __init__(
        self,
        directory: Path,
        *,
        budget_gib: float,
        insecure_registries: Collection[str] = (),
        docker_url: str = "",
    ) -> None:
        self._shelf = Shelf(directory)
        self._budget_bytes = int(budget_gib * 2**30)
        self._insecure = frozenset(insecure_registries)
        self._docker_url = docker_url
        self._pulls: dict[str, _Shared] = {}

    async def ensure(self, reference: str, *, say: Say = lambda _: None) -> Image:
        """The image of this name, pulled when it is not here. Concurrent calls share one pull.

        Raises ImageUnavailable, and ProviderUnavailable when a program that it needs is missing.
        """
        name = parse(reference).name
        found = await asyncio.to_thread(self._shelf.find, name)
        return found or await self._together(name, lambda: self._pull(reference, name, say, renew=False))

    async def pull(self, reference: str, *, name: str = "", say: Say = lambda _: None) -> Image:
        """Ask the registry even when the image is here, and store it as `name`. Raises like `ensure`."""
        return await self._pull(reference, parse(name or reference).name, say, renew=True)

    async def import_(self, source: str, *, name: str = "", say: Say = lambda _: None) -> Image:
        """Take an image from any source (see `hone.sandbox.images.sources`). Raises like `ensure`.

        Args:
            name: default the one that the source brings along.
        """
        async with self._work() as made:
            opened = open_source(source, made, insecure=self._insecure, docker_url=self._docker_url)
            async with opened as found:
                if not (name or found.suggested):
                    raise ImageUnavailable(f"{source} brings no name: give it one", problem="unknown_image")
                return await self._bring(found, parse(name or found.suggested).name, made, say)

    async def export(self, reference: str, file: Path, *, say: Say = lambda _: None) -> Image:
        """Write an image that is here as an OCI archive, whole or not at all; its digest stays the same.

        Raises ImageUnavailable when it is not here or its blobs are damaged.
        """
        image = await asyncio.to_thread(self._shelf.find, parse(reference).name)
        if image is None:
            raise ImageUnavailable(f"{parse(reference).name} is not on this machine", problem="unknown_image")
        folder, draft_name = file.parent, f".hone-{secrets.token_hex(4)}.part"
        with self.use(image):
            async with staging(self._shelf.staging) as made:
                await run_in_thread(self._lay_out, image, made, folder)
                try:
                    await skopeo(
                        [
                            *("copy", "--quiet", "--src-shared-blob-dir", "blobs", f"oci:{LAYOUT}"),
                            f"oci-archive:target/{draft_name}:{image.name}",
                        ],
                        image.name,
                        staging=made.directory,
                        lock_fd=made.lock.fd,
                        say=say,
                    )
                    await run_in_thread((folder / draft_name).rename, file)
                finally:
                    await run_in_thread((folder / draft_name).unlink, missing_ok=True)
        return image

    async def find(self, reference: str) -> Image | None:
        """The image of this name, when it is here."""
        return await asyncio.to_thread(self._shelf.find, parse(reference).name)

    async def list(self) -> list[Image]:
        """Every image, once for each of its names; the last used ones first."""
        return await asyncio.to_thread(self._shelf.list)

    async def taken_bytes(self) -> int:
        """Bytes on disk of all images."""
        return size(await asyncio.to_thread(self._shelf.all_records))

    async def prune(self, to_bytes: int | None = None) -> int:
        """Remove the least recently used images until the rest fits; return how many went.

        Args:
            to_bytes: default the budget; 0 removes every image that is not in use.
        """
        limit = self._budget_bytes if to_bytes is None else to_bytes
        async with staging(self._shelf.staging) as made:
            return len(await run_in_thread(self._shelf.tidy, made, limit))

    @contextlib.contextmanager
    def use(self, image: Image) -> Iterator[None]:
        """Hold an image against eviction, in all processes. Raises ImageUnavailable when it is gone."""
        held = self._shelf.hold(image.digest)
        if held is None:
            raise gone(image.name)
        with held:
            yield

    def _lay_out(self, image: Image, made: Staging, target: Path) -> None:
        """In `made`, an OCI image layout of one image over the store's blobs, and a link to `target`."""
        manifest = self._shelf.blob(image.digest)
        made.blobs.rmdir()
        made.blobs.symlink_to(self._shelf.blobs.resolve())
        (made.directory / "target").symlink_to(target.absolute())
        layout = made.directory / LAYOUT
        layout.mkdir()
        (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
        described = {"mediaType": OCI_MANIFEST, "digest": image.digest, "size": manifest.stat().st_size}
        (layout / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [described]}))

    async def _together(self, name: str, start: Callable[[], Awaitable[Image]]) -> Image:
        """One task per name; it ends with the last of its callers."""
        if name not in self._pulls:
            self._pulls[name] = _Shared(task=asyncio.ensure_future(start()))  # pyright: ignore
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

    async def _pull(self, reference: str, name: str, say: Say, *, renew: bool) -> Image:
        """Pulls of one name wait for each other, in other processes too."""
        with await wait_for_one([self._shelf.name_lock(name)]):
            found = None if renew else await asyncio.to_thread(self._shelf.find, name)
            if found is not None:
                return found
            async with self._work() as made:
                return await self._bring(from_registry(parse(reference), self._insecure), name, made, say)

    @contextlib.asynccontextmanager
    async def _work(self) -> AsyncGenerator[Staging]:
        """A staging directory; after a failure nothing of what was made in it, or from it, stays."""
        try:
            async with staging(self._shelf.staging) as made:
                yield made
        except BaseException as error:
            async with staging(self._shelf.staging) as made:
                await run_in_thread(self._shelf.tidy, made)
            if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise disk_full("the disk is full") from error
            raise

    async def _bring(self, source: Source, name: str, made: Staging, say: Say) -> Image:
        """Fetch, unpack, publish."""
        shelf = self._shelf
        digest = await fetch(source, made, blobs=shelf.blobs, locks=shelf.locks, say=say)
        record = await asyncio.to_thread(read_image, source.name, digest, made.blobs)
        with contextlib.ExitStack() as pins:
            record = await self._unpack(record, source.name, made, pins, say)
            return await run_in_thread(shelf.publish, record, name, made, self._budget_bytes)

    async def _unpack(
        self, record: Record, image: str, made: Staging, pins: contextlib.ExitStack, say: Say
    ) -> Record:
        """Have every layer unpacked and, until `pins` close, held; the record with their sizes."""
        sizes = {
            layer.diff_id: layer.bytes
            for known in await asyncio.to_thread(self._shelf.all_records)
            for layer in known.layers
        }
        gate = asyncio.Semaphore(LAYERS_AT_ONCE)
        count = itertools.count(1)

        async def one(layer: Layer) -> Layer:
            async with gate:
                pins.enter_context(await self._layer(layer, image, made))
            say(f"{next(count)} of {len(record.layers)} layers unpacked")
            path = self._shelf.layer(layer.diff_id)
            return replace(layer, bytes=sizes.get(layer.diff_id) or await run_in_thread(size_of, path))

        try:
            async with asyncio.TaskGroup() as group:
                tasks = [group.create_task(one(layer)) for layer in record.layers]
        except BaseExceptionGroup as errors:
            raise errors.exceptions[0] from None
        return replace(record, layers=tuple(task.result() for task in tasks))

    async def _layer(self, layer: Layer, image: str, made: Staging) -> Lock:
        """A shared lock on an unpacked layer; it is unpacked here unless another process does that."""
        path = self._shelf.layer(layer.diff_id)
        while True:
            if (pin := lock(path, shared=True)) is not None:
                return pin
            making = lock_file(self._shelf.locks / f"layer-{path.name}")
            if making is not None:
                with making:
                    if not path.exists():
                        fresh = made.new_directory("layer")
                        blob = made.blobs / layer.blob.removeprefix("sha256:")
                        budget = self._budget_bytes
                        await unpack_layer(blob, layer.diff_id, fresh, image=image, budget_bytes=budget)
                        pin = lock(fresh, shared=True)
                        assert pin is not None, "nobody else knows it"
                        fresh.rename(path)
                        return pin
            await asyncio.sleep(POLL_S)
