"""Where images come from, told by how a source is written or by what it contains.

docker://NAME[:TAG|@DIGEST]     a registry
docker-daemon:NAME[:TAG]        a local Docker engine ($DOCKER_HOST)
FILE                            an archive of `docker save`, or an OCI archive
DIRECTORY                       an OCI image layout; or a Dockerfile, which is built
"""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import shutil
import tarfile
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hone.sandbox.contract import ImageUnavailable
from hone.sandbox.images import build
from hone.sandbox.images.reference import Reference, parse
from hone.sandbox.images.staging import Staging
from hone.sandbox.images.unpack import GZIP_MAGIC
from hone.utils.concurrency import run_in_thread

DEFAULT_DAEMON = "unix:///var/run/docker.sock"
_MAX_INDEX_BYTES = 1 << 20
_NAME_ANNOTATION = "org.opencontainers.image.ref.name"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What skopeo copies from."""

    name: str  # for people
    transport: str  # as skopeo takes it, relative to the staging directory
    flags: tuple[str, ...] = ()
    registry: str = ""  # whose pulls are counted and tried again; "" where there is none
    suggested: str = ""  # the name that it brings along, "" for none


def from_registry(reference: Reference, insecure: frozenset[str]) -> Source:
    """Plain HTTP only on this machine and where `insecure` names the registry."""
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
        flags=("--daemon-host", _for_skopeo(daemon)),
        suggested=name,
    )


@contextlib.asynccontextmanager
async def open_source(
    text: str, made: Staging, *, insecure: frozenset[str], docker_url: str
) -> AsyncGenerator[Source]:
    """Find out what `text` names; a Dockerfile is built, and what that left elsewhere removed at the end.

    Raises ImageUnavailable when it names nothing that can be an image.
    """
    daemon = docker_url or os.environ.get("DOCKER_HOST") or DEFAULT_DAEMON
    if text.startswith("docker://"):
        yield from_registry(parse(text), insecure)
    elif text.startswith("docker-daemon:"):
        name = text.removeprefix("docker-daemon:")
        yield from_daemon(name if ":" in name.rpartition("/")[2] else f"{name}:latest", daemon)
    elif (source := await run_in_thread(_from_path, Path(text), made)) is not None:
        yield source
    else:
        async with build.built(Path(text), made, daemon) as tag:
            result = Source(name=text, transport=f"oci:{build.RESULT}")
            yield from_daemon(tag, daemon) if tag else result


def _from_path(path: Path, made: Staging) -> Source | None:
    """None for a directory with a Dockerfile. The source is linked into `made`, where no name is odd."""
    source = made.directory / "source"
    if path.is_file():
        _bring_near(path, source)
        kind, suggested = _look_into(path, source)
        return Source(name=str(path), transport=f"{kind}:source", suggested=suggested)
    source.symlink_to(path.resolve())
    if (path / "oci-layout").is_file():
        suggested = _name_in_index((path / "index.json").read_bytes())
        return Source(name=str(path), transport="oci:source", suggested=suggested)
    if (path / "Dockerfile").is_file():
        return None
    raise ImageUnavailable(
        f"{path} is no image: give docker://NAME, docker-daemon:NAME, an archive, a directory with an OCI "
        "layout, or one with a Dockerfile",
        problem="unknown_image",
    )


def _for_skopeo(daemon: str) -> str:
    """skopeo speaks HTTP to a tcp address only when it is written so."""
    return daemon.replace("tcp://", "http://", 1)


def _bring_near(path: Path, source: Path) -> None:
    """Link an archive, or unpack one of `docker save | gzip`, which skopeo cannot read."""
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


def _look_into(path: Path, source: Path) -> tuple[str, str]:
    """skopeo's name for the kind of an archive, and the name it carries for its image."""
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
        raise ValueError(f"{member.name} is no list of images")
    return file.read()


def _name_in_index(content: bytes) -> str:
    """The name of the first image of an OCI layout; "" where it has none, or a tag only."""
    manifests: list[dict[str, Any]] = json.loads(content).get("manifests") or [{}]
    name = str((manifests[0].get("annotations") or {}).get(_NAME_ANNOTATION, ""))
    return name if "/" in name or ":" in name else ""


def _no_archive(path: Path, why: str) -> ImageUnavailable:
    return ImageUnavailable(f"{path} is no archive of an image ({why})", problem="damaged_image")
