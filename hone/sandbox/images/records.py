"""Image metadata: the configuration, and the size on this disk."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from hone.sandbox.contract import ImageUnavailable

MAX_DOCUMENT_BYTES = 8 << 20  # of a manifest or a configuration
_ARCHITECTURES = {
    "x86_64": "amd64", "aarch64": "arm64", "i386": "386", "i686": "386", "armv6l": "arm", "armv7l": "arm",
}  # fmt: skip  # name in uname -> name in images; others are equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """An image that is unpacked on this machine. Its entry point and command are ignored."""

    name: str  # REGISTRY/REPOSITORY:TAG, or the digest when it has no name
    digest: str  # sha256:..., of its OCI manifest
    layers: tuple[Path, ...]  # directories in overlayfs form, the lowest first
    env: Mapping[str, str]
    workdir: str  # "" when the image names none
    user: str  # as the image names it: a name or a number, with or without `:group`; "" is root
    architecture: str
    bytes: int  # on disk, including parts shared with other images
    last_used: float  # seconds since the epoch


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    diff_id: str  # digest of the archive
    blob: str  # digest of the archive as it is stored, mostly compressed
    blob_bytes: int
    bytes: int = 0  # on disk, unpacked


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One image in the store."""

    digest: str
    config: str  # digest
    layers: tuple[Layer, ...]
    env: dict[str, str]
    workdir: str
    user: str
    architecture: str

    @property
    def blobs(self) -> frozenset[str]:
        return frozenset((self.digest, self.config, *(layer.blob for layer in self.layers)))

    @property
    def parts(self) -> dict[str, int]:
        """Name -> bytes of everything that the image keeps on disk. Images share parts of equal name."""
        unpacked = {layer.diff_id: layer.bytes for layer in self.layers}
        return unpacked | {f"blob {layer.blob}": layer.blob_bytes for layer in self.layers}


RECORD_JSON = TypeAdapter(Record)


def read_image(name: str, digest: str, blobs: Path) -> Record:
    """Return the record of an image whose manifest and configuration are in `blobs`.

    Raises ImageUnavailable when they are invalid, or when the image is for another architecture.
    Format: OCI image specification, manifest.md and config.md.
    """
    try:
        manifest = _load(blobs, digest)
        config_digest = _digest(manifest["config"]["digest"])
        config = _load(blobs, config_digest)
        if "architecture" not in config:
            raise ValueError("its configuration names no architecture")
        check_machine(name, str(config.get("os", "linux")), str(config["architecture"]))
        diff_ids = [_digest(diff_id) for diff_id in config["rootfs"]["diff_ids"]]
        stored = [(_digest(layer["digest"]), int(layer["size"])) for layer in manifest["layers"]]
        if len(diff_ids) != len(stored):
            raise ValueError(f"it has {len(stored)} layers and the digests of {len(diff_ids)}")
        layers = [
            Layer(diff_id=diff_id, blob=blob, blob_bytes=size)
            for diff_id, (blob, size) in zip(diff_ids, stored, strict=True)
        ]
        settings: dict[str, Any] = config.get("config") or {}
        pairs = [str(item).partition("=") for item in settings.get("Env") or ()]
        return Record(
            digest=digest,
            config=config_digest,
            # Overlayfs refuses a layer twice; of equal layers the uppermost hides the others.
            layers=tuple({layer.diff_id: layer for layer in reversed(layers)}.values())[::-1],
            env={key: value for key, _, value in pairs if key},
            workdir=str(settings.get("WorkingDir") or ""),
            user=str(settings.get("User") or ""),
            architecture=str(config["architecture"]),
        )
    except (KeyError, TypeError, ValueError, AttributeError, RecursionError, FileNotFoundError) as error:
        why = f"{type(error).__name__}: {error}"
        raise ImageUnavailable(f"{name} is not a container image ({why})", problem="damaged_image") from error


def machine() -> str:
    """Return the architecture of this machine, as images name it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def check_machine(name: str, system: str, architecture: str) -> None:
    """Raise ImageUnavailable when the image is for another architecture."""
    if (system, architecture) != ("linux", machine()):
        message = f"{name} is for {system}/{architecture}, and this machine is linux/{machine()}"
        raise ImageUnavailable(message, problem="other_architecture")


def _load(blobs: Path, digest: str) -> dict[str, Any]:
    path = blobs / digest.removeprefix("sha256:")
    if path.stat().st_size > MAX_DOCUMENT_BYTES:
        raise ValueError(f"{digest} is too large for a manifest or configuration")
    return json.loads(path.read_bytes())


def _digest(value: object) -> str:
    """Return the value, which becomes a file name. Raises ValueError unless it is a SHA-256 digest."""
    text = str(value)
    hexadecimal = text.removeprefix("sha256:")
    if len(text) != 71 or len(hexadecimal) != 64 or set(hexadecimal) - set("0123456789abcdef"):
        raise ValueError(f"{text[:100]!r} is not a digest")
    return text
