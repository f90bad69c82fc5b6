"""The sources of images, recognised by their spelling or content.

docker://NAME[:TAG|@DIGEST]     a registry
docker-daemon:NAME[:TAG]        a local Docker engine ($DOCKER_HOST)
FILE                            an archive of `docker save`, or an OCI archive
DIRECTORY                       an OCI image layout

A directory with a Dockerfile is built by `ImageStore.build`.
"""

from __future__ import annotations

import gzip
import json
import os
import shutil
import tarfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images.locks import Staging
from hone.sandbox.images.reference import Reference, parse
from hone.sandbox.images.unpack import GZIP_MAGIC
from hone.utils.concurrency import run_in_thread

DEFAULT_DAEMON = "unix:///var/run/docker.sock"
_MAX_INDEX_BYTES = 1 << 20
_NAME_ANNOTATION = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A source for `skopeo copy`."""

    name: str  # in messages
    transport: str  # as skopeo takes it, relative to the staging directory
    flags: tuple[str, ...] = ()
    registry: str = ""  # pulls from it are limited and retried; "" for other sources
    suggested: str = ""  # the image name in the source, "" for none


def from_registry(reference: Reference, insecure: frozenset[str]) -> Source:
    """Return the source of a registry; plain HTTP only on this machine and for the registries `insecure`."""
    plain = reference.is_loopback or reference.registry in insecure
    return Source(
        name=reference.name,
        transport=f"docker://{reference.name}",
        flags=("--tls-verify=false",) if plain else (),
        registry=reference.registry,
        suggested=reference.name,
    )


def from_daemon(name: str, daemon: str) -> Source:
    return Source(
        name=f"docker-daemon:{name}",
        transport=f"docker-daemon:{name}",
        flags=("--daemon-host", daemon.replace("tcp://", "http://", 1)),  # skopeo's spelling
        suggested=name,
    )


async def find_source(text: str, made: Staging, *, insecure: frozenset[str], docker_url: str) -> Source:
    """Return the source that `text` names. Raises ImageUnavailable when it names no image."""
    if text.startswith("docker://"):
        return from_registry(parse(text), insecure)
    if text.startswith("docker-daemon:"):
        name = text.removeprefix("docker-daemon:")
        return from_daemon(
            name if ":" in name.rpartition("/")[2] else f"{name}:latest", engine_url(docker_url)
        )
    return await run_in_thread(_from_path, Path(text), made)


def engine_url(docker_url: str) -> str:
    """Return the URL of the Docker engine to use."""
    return docker_url or os.environ.get("DOCKER_HOST") or DEFAULT_DAEMON


def _from_path(path: Path, made: Staging) -> Source:
    """Link a source into `made` under a plain name."""
    source = made.directory / "source"
    if path.is_file():
        _link_archive(path, source)
        kind, suggested = _recognise(path, source)
        return Source(name=str(path), transport=f"{kind}:source", suggested=suggested)
    source.symlink_to(path.resolve())
    if (path / "oci-layout").is_file():
        suggested = _name_in_index((path / "index.json").read_bytes())
        return Source(name=str(path), transport="oci:source", suggested=suggested)
    raise ImageUnavailable(
        f"{path} is not an image: give docker://NAME, docker-daemon:NAME, an archive, a directory with an "
        "OCI layout, or one with a Dockerfile",
        problem="unknown_image",
    )


def _link_archive(path: Path, source: Path) -> None:
    """Link an archive, or decompress one of `docker save | gzip`, which skopeo cannot read."""
    with path.open("rb") as file:
        packed = file.read(2) == GZIP_MAGIC
    if not packed:
        source.symlink_to(path.resolve())
        return
    try:
        with gzip.open(path) as content, source.open("wb") as target:
            shutil.copyfileobj(content, target, 1 << 20)
    except (gzip.BadGzipFile, zlib.error, EOFError) as error:
        raise _no_archive(path, str(error)) from error


def _recognise(path: Path, source: Path) -> tuple[str, str]:
    """Return skopeo's transport for an archive, and the image name in it."""
    try:
        with tarfile.open(source, "r:") as archive:
            for member in archive:
                name = member.name.removeprefix("./")
                if name == "index.json":
                    return "oci-archive", _name_in_index(_read(archive, member))
                if name == "manifest.json":
                    listed: list[dict[str, Any]] = json.loads(_read(archive, member))
                    tags = listed[0].get("RepoTags") or [""]
                    return "docker-archive", str(tags[0])
    except (tarfile.TarError, ValueError, LookupError, AttributeError, TypeError, EOFError) as error:
        raise _no_archive(path, " ".join(f"{type(error).__name__}: {error}".split())) from error
    raise _no_archive(path, "it holds neither index.json nor manifest.json")


def _read(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member)
    if file is None or member.size > _MAX_INDEX_BYTES:
        raise ValueError(f"{member.name} is not a list of images")
    return file.read()


def _name_in_index(content: bytes) -> str:
    """Return the name of the first image of an OCI layout; "" when it has none or only a tag."""
    manifests: list[dict[str, Any]] = json.loads(content).get("manifests") or [{}]
    name = str((manifests[0].get("annotations") or {}).get(_NAME_ANNOTATION, ""))
    return name if "/" in name or ":" in name else ""


def _no_archive(path: Path, why: str) -> ImageUnavailable:
    return ImageUnavailable(f"{path} is not an image archive ({why})", problem="damaged_image")
