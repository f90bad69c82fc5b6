"""The files of the image store, and every change of them.

    blobs/sha256/HEX     layers as fetched, manifests, configurations: kept so that bases are fetched once
    layers/HEX/          an unpacked layer, named by its diff id
    records/HEX.json     an image; its modification time is its last use; locked (shared) while in use
    names/HASH           a name and its digest
    staging/TOKEN/       files being written or removed; locked by their owner
    builds/              what buildah keeps, see `hone.sandbox.images.buildah`
    locks/               `store`, held for moments; one per layer being unpacked, per pull from a registry
                         and per build

Everything is written in `staging` and renamed into place. Records, names and blobs change under the lock
`store` only. Invariant: every file that a record names exists. A layer without a record is removed unless a
running pull has locked it (shared).
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import time
from collections.abc import Iterator
from pathlib import Path

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.layers import disk_full
from hone.sandbox.images.locks import Lock, Staging, lock, remove_dead
from hone.sandbox.images.records import RECORD_JSON, Image, Record


class ContentStore:
    """All methods block for moments; none waits for a pull."""

    def __init__(self, directory: Path) -> None:
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.blobs = directory / "blobs" / "sha256"
        self.layers = directory / "layers"
        self.records = directory / "records"
        self.names = directory / "names"
        self.staging = directory / "staging"
        self.locks = directory / "locks"
        self.builds = directory / "builds"
        for path in (self.blobs, self.layers, self.records, self.names, self.staging, self.locks):
            path.mkdir(parents=True, exist_ok=True)
        self._store_lock = self.locks / "store"
        self._store_lock.touch()
        remove_dead(self.staging)
        for path in self.locks.iterdir():
            if path != self._store_lock and (free := lock(path, make=True)) is not None:
                free.release()

    def layer(self, diff_id: str) -> Path:
        return self.layers / diff_id.removeprefix("sha256:")

    def blob(self, digest: str) -> Path:
        return self.blobs / digest.removeprefix("sha256:")

    def name_lock(self, name: str) -> Path:
        """The lock file of the pull of this name."""
        return self.locks / f"name-{self._name_file(name).name}"

    def find(self, name: str) -> Image | None:
        """Return the image of a full name (`Reference.name`), or None."""
        try:
            _, digest = self._name_file(name).read_text().splitlines()
            return self._image(RECORD_JSON.validate_json(self._record(digest).read_bytes()), name)
        except FileNotFoundError:
            return None

    def list(self) -> list[Image]:
        """Return every image, once for each of its names, the most recently used first."""
        with self._store():
            records, names = self.all_records(), self._all_names()
        images = [
            self._image(record, name)
            for record in records
            for name in sorted(n for n, digest in names.items() if digest == record.digest) or [record.digest]
        ]
        return sorted(images, key=lambda image: -image.last_used)

    def hold(self, digest: str) -> Lock | None:
        """Lock an image against removal and record its use; return None when it is not stored."""
        held = lock(self._record(digest), shared=True, wait=True)
        if held is not None:
            os.utime(held.fd)
        return held

    def publish(self, record: Record, name: str, made: Staging, budget_bytes: int) -> Image:
        """Record an image whose layers are unpacked and locked and whose blobs are in `made`.

        Raises ImageUnavailable when evicting other images frees too little; then none was evicted.
        """
        with self._store():
            if not self._record(record.digest).exists():
                self._evict(budget_bytes, record, must=True)
                for digest in record.blobs:
                    with contextlib.suppress(FileExistsError):
                        os.link(made.blobs / digest.removeprefix("sha256:"), self.blob(digest))
                _write(made, self._record(record.digest), RECORD_JSON.dump_json(record))
            os.utime(self._record(record.digest))
            _write(made, self._name_file(name), f"{name}\n{record.digest}\n".encode())
            self._sweep(made)
            return self._image(record, name)

    def clean(self, made: Staging, budget_bytes: int | None = None) -> list[Record]:
        """Remove unreferenced files and, above a budget, the least recently used images; return those."""
        with self._store():
            removed = [] if budget_bytes is None else self._evict(budget_bytes, None, must=False)
            self._sweep(made)
            return removed

    def all_records(self) -> list[Record]:
        """Return all records, the least recently used first."""
        paths = sorted(self.records.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        return [RECORD_JSON.validate_json(path.read_bytes()) for path in paths]

    def _evict(self, budget_bytes: int, new: Record | None, *, must: bool) -> list[Record]:
        """Remove unused images, the least recently used first, until the rest fits the budget."""
        kept = {record.digest: record for record in self.all_records()}
        held: list[Lock] = []
        evicted: list[Record] = []
        with contextlib.ExitStack() as locks:
            for record in list(kept.values()):
                if size([*kept.values(), *filter(None, [new])]) <= budget_bytes:
                    break
                free = lock(self._record(record.digest))
                if free is not None:
                    held.append(locks.enter_context(free))
                    evicted.append(kept.pop(record.digest))
            taken = size([*kept.values(), *filter(None, [new])])
            if must and taken > budget_bytes:
                raise disk_full(
                    f"the image needs {taken / 2**30:.3g} GiB together with those in use, of "
                    f"{budget_bytes / 2**30:.3g} GiB"
                )
            for free in held:
                free.path.unlink()
        digests = {record.digest for record in evicted}
        for name, digest in self._all_names().items():
            if digest in digests:
                self._name_file(name).unlink()
        return evicted

    def _sweep(self, made: Staging) -> None:
        """Move files that no record names and no pull has locked into `made`, which is removed later."""
        records = self.all_records()
        layers = {self.layer(layer.diff_id) for record in records for layer in record.layers}
        trash = made.new_directory("trash")
        for path in set(self.layers.iterdir()) - layers:
            free = lock(path)
            if free is not None:
                with free:
                    path.rename(trash / path.name)
        blobs = {self.blob(digest) for record in records for digest in record.blobs}
        for path in set(self.blobs.iterdir()) - blobs:
            path.unlink()

    @contextlib.contextmanager
    def _store(self) -> Iterator[None]:
        held = lock(self._store_lock, wait=True)
        assert held is not None, "exists since __init__"
        with held:
            yield

    def _image(self, record: Record, name: str) -> Image:
        try:
            last_used = self._record(record.digest).stat().st_mtime
        except FileNotFoundError:  # evicted meanwhile; `hold` fails later
            last_used = time.time()
        return Image(
            name=name,
            digest=record.digest,
            layers=tuple(self.layer(layer.diff_id) for layer in record.layers),
            env=record.env,
            workdir=record.workdir,
            user=record.user,
            architecture=record.architecture,
            bytes=size([record]),
            last_used=last_used,
        )

    def _record(self, digest: str) -> Path:
        return self.records / f"{digest.removeprefix('sha256:')}.json"

    def _name_file(self, name: str) -> Path:
        return self.names / hashlib.sha256(name.encode()).hexdigest()

    def _all_names(self) -> dict[str, str]:
        """name -> digest"""
        return dict(path.read_text().splitlines() for path in self.names.iterdir())  # pyright: ignore


def size(records: list[Record]) -> int:
    """Return the bytes on disk of several images together; shared parts count once."""
    parts: dict[str, int] = {}
    for record in records:
        parts |= record.parts
    return sum(parts.values())


def gone(name: str) -> ImageUnavailable:
    """Return the error for an image that has been evicted since it was found."""
    return ImageUnavailable(f"{name} was removed from this machine", problem="unknown_image", retryable=True)


def _write(made: Staging, path: Path, content: bytes) -> None:
    """Write a file atomically."""
    draft = made.directory / path.name
    draft.write_bytes(content)
    draft.rename(path)
