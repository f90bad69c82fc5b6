"""The sources of images, recognised by their spelling or content.

docker://NAME[:TAG|@DIGEST]     a registry
docker-daemon:NAME[:TAG]        a local Docker engine ($DOCKER_HOST)
FILE                            an archive of `docker save`, or an OCI archive
DIRECTORY                       an OCI image layout, or a Dockerfile, which is built
"""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
import os
import secrets
import shutil
import tarfile
import zlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp

from hone.sandbox.contract import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images.locks import Staging, child
from hone.sandbox.images.reference import Reference, parse
from hone.sandbox.images.unpack import GZIP_MAGIC
from hone.utils.concurrency import run_in_thread

DEFAULT_DAEMON = "unix:///var/run/docker.sock"
_MAX_INDEX_BYTES = 1 << 20
_NAME_ANNOTATION = "org.opencontainers.image.ref.name"
_RESULT = "built"  # the OCI layout that buildah writes in the staging directory
_BUILD_TIMEOUT_S = 7200.0
_PING_TIMEOUT_S = 5.0


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


@contextlib.asynccontextmanager
async def open_source(
    text: str, made: Staging, *, insecure: frozenset[str], docker_url: str
) -> AsyncGenerator[Source]:
    """Yield the source that `text` names. A Dockerfile is built, and the result removed at the end.

    Raises ImageUnavailable when `text` names no image.
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
        async with build_image(Path(text), made, daemon) as tag:
            result = Source(name=text, transport=f"oci:{_RESULT}")
            yield from_daemon(tag, daemon) if tag else result


def _from_path(path: Path, made: Staging) -> Source | None:
    """Link a source into `made` under a plain name; return None for a directory with a Dockerfile."""
    source = made.directory / "source"
    if path.is_file():
        _link_archive(path, source)
        kind, suggested = _recognise(path, source)
        return Source(name=str(path), transport=f"{kind}:source", suggested=suggested)
    source.symlink_to(path.resolve())
    if (path / "oci-layout").is_file():
        suggested = _name_in_index((path / "index.json").read_bytes())
        return Source(name=str(path), transport="oci:source", suggested=suggested)
    if (path / "Dockerfile").is_file():
        return None
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


@contextlib.asynccontextmanager
async def build_image(directory: Path, made: Staging, daemon: str) -> AsyncGenerator[str]:
    """Build; yield the image's name in the engine, removed at the end, or "" when the image is in _RESULT.

    Raises ProviderUnavailable when there is no builder, or the Dockerfile fails.
    """
    ignores = (directory / ".dockerignore").is_file()  # the engine leaves it to its clients
    async with aiodocker.Docker(daemon) as docker:
        if not ignores and await _answers(docker):
            tag = f"hone-build:{secrets.token_hex(8)}"
            try:
                await _build_by_engine(docker, directory, made, tag)
                yield tag
            finally:
                with contextlib.suppress(aiodocker.DockerError):  # a failed build left no image
                    await docker.images.delete(tag)
            return
    if shutil.which("buildah") is None:
        reason = (
            "the Docker engine's API ignores its .dockerignore" if ignores else "no Docker engine answers"
        )
        raise ProviderUnavailable(
            f"{directory} cannot be built: {reason}, and buildah is missing; install it: "
            "apt-get install buildah",
            retryable=False,
        )
    await _build_by_buildah(directory, made)
    yield ""


async def _answers(docker: aiodocker.Docker) -> bool:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await docker.version()
    except (aiodocker.DockerError, aiohttp.ClientError, OSError, TimeoutError):
        return False
    return True


async def _build_by_engine(docker: aiodocker.Docker, directory: Path, made: Staging, tag: str) -> None:
    context = made.directory / "context.tar"

    def pack() -> None:
        with tarfile.open(context, "w") as archive:
            archive.add(directory, arcname=".")

    await run_in_thread(pack)
    try:
        with context.open("rb") as file:
            async with asyncio.timeout(_BUILD_TIMEOUT_S):
                await docker.images.build(fileobj=file, encoding="identity", tag=tag, forcerm=True)
    except (aiodocker.DockerError, aiohttp.ClientError, TimeoutError) as error:
        raise _failed(directory, str(error)) from error
    finally:
        context.unlink()


async def _build_by_buildah(directory: Path, made: Staging) -> None:
    image_id = made.directory / "iid"
    await _run(["buildah", "bud", "--iidfile", str(image_id), str(directory)], directory, made)
    try:
        await _run(
            ["buildah", "push", image_id.read_text().strip(), f"oci:{_RESULT}:latest"], directory, made
        )
    finally:
        await _run(["buildah", "rmi", image_id.read_text().strip()], directory, made)


async def _run(command: list[str], directory: Path, made: Staging) -> None:
    async with child(command, made, stderr=asyncio.subprocess.STDOUT) as (process, output):
        try:
            async with asyncio.timeout(_BUILD_TIMEOUT_S):
                text, _ = await asyncio.shield(output)
        except TimeoutError:
            raise _failed(directory, f"it takes more than {_BUILD_TIMEOUT_S:.0f} seconds") from None
    if process.returncode:
        raise _failed(directory, text.decode("utf-8", "replace"))


def _failed(directory: Path, output: str) -> ProviderUnavailable:
    reason = " ".join(output.split())[-400:]
    return ProviderUnavailable(f"the Dockerfile of {directory} cannot be built: {reason}", retryable=False)
