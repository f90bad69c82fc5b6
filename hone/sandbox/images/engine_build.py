"""Build Dockerfiles by a Docker engine."""

from __future__ import annotations

import asyncio
import contextlib
import json
import secrets
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import aiodocker
import aiohttp

from hone.sandbox.images.dockerfile import read_dockerfile, refusal
from hone.sandbox.images.locks import Staging
from hone.utils.concurrency import run_in_thread

_BUILD_TIMEOUT_S = 7200.0
_PING_TIMEOUT_S = 5.0
_LAST_CHARACTERS = 400  # of a build's output, in a message


@contextlib.asynccontextmanager
async def built_by_engine(url: str, context: Path, made: Staging, *, network: bool) -> AsyncGenerator[str]:
    """Build a directory's Dockerfile; yield the image's name in the engine, removed at the end.

    Raises ProviderUnavailable when no engine answers, or the Dockerfile fails.
    """
    tag = f"hone-build:{secrets.token_hex(8)}"
    async with aiodocker.Docker(url) as docker:
        if not await _answers(docker):
            raise refusal(
                f"buildah is missing, and no Docker engine answers at {url}; install it: apt-get install "
                "buildah runc"
            )
        try:
            await build(docker, context, tag, made.directory / "context.tar", network=network)
            yield tag
        finally:
            with contextlib.suppress(aiodocker.DockerError):  # a failed build left no image
                await docker.images.delete(tag)


async def _answers(docker: aiodocker.Docker) -> bool:
    try:
        async with asyncio.timeout(_PING_TIMEOUT_S):
            await docker.version()
    except (aiodocker.DockerError, aiohttp.ClientError, OSError, TimeoutError):
        return False
    return True


async def build(docker: aiodocker.Docker, context: Path, tag: str, archive: Path, *, network: bool) -> None:
    """Build a directory's Dockerfile as the image `tag` of an engine.

    Args:
        archive: a file to write meanwhile.
    Raises:
        ProviderUnavailable: the Dockerfile cannot be built.
    """
    await asyncio.to_thread(read_dockerfile, context, network=network)
    if (context / ".dockerignore").is_file():
        raise refusal("the API of a Docker engine ignores its .dockerignore; build it with buildah")

    def pack() -> None:
        with tarfile.open(archive, "w") as packed:
            packed.add(context, arcname=".")

    await run_in_thread(pack)
    try:
        async with asyncio.timeout(_BUILD_TIMEOUT_S):
            error = await _post(docker, archive, tag, network=network)
    except (aiodocker.DockerError, aiohttp.ClientError, TimeoutError) as failure:
        error = str(failure) or type(failure).__name__
    finally:
        await asyncio.to_thread(archive.unlink)
    if error:
        raise refusal(" ".join(error.split())[-_LAST_CHARACTERS:])


async def _post(docker: aiodocker.Docker, archive: Path, tag: str, *, network: bool) -> str:
    """Send a context and wait for the end of its build; return the error after its last output, or ""."""
    # aiodocker's own method has no network mode
    parameters = {"t": tag, "forcerm": "1", **({} if network else {"networkmode": "none"})}
    headers = {"Content-Type": "application/x-tar"}
    forever = aiohttp.ClientTimeout(total=None)
    with archive.open("rb") as file:
        sent = docker._query("build", "POST", params=parameters, data=file, headers=headers, timeout=forever)
        async with sent as response:
            text = await response.text()
    events: list[dict[str, Any]] = [json.loads(line) for line in text.splitlines() if line.strip()]
    error = next((str(event["error"]) for event in events if "error" in event), "")
    said = "".join(str(event.get("stream", "")) for event in events)
    return f"{said[-_LAST_CHARACTERS // 2 :]} {error}" if error else ""
