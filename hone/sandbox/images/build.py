"""Build a directory with a Dockerfile: with the Docker engine if one answers, else with buildah."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import shutil
import tarfile
from collections.abc import AsyncGenerator
from pathlib import Path

import aiodocker
import aiohttp

from hone.sandbox.contract import ProviderUnavailable
from hone.sandbox.images.programs import child
from hone.sandbox.images.staging import Staging
from hone.utils.concurrency import run_in_thread

RESULT = "built"  # the OCI layout that buildah writes in the staging directory
TIMEOUT_S = 7200.0
_PING_TIMEOUT_S = 5.0


@contextlib.asynccontextmanager
async def build_image(directory: Path, made: Staging, daemon: str) -> AsyncGenerator[str]:
    """Build; yield the image's name in the engine, removed at the end, or "" when the image is in RESULT.

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
            async with asyncio.timeout(TIMEOUT_S):
                await docker.images.build(fileobj=file, encoding="identity", tag=tag, forcerm=True)
    except (aiodocker.DockerError, aiohttp.ClientError, TimeoutError) as error:
        raise _failed(directory, str(error)) from error
    finally:
        context.unlink()


async def _build_by_buildah(directory: Path, made: Staging) -> None:
    image_id = made.directory / "iid"
    await _run(["buildah", "bud", "--iidfile", str(image_id), str(directory)], directory, made)
    try:
        await _run(["buildah", "push", image_id.read_text().strip(), f"oci:{RESULT}:latest"], directory, made)
    finally:
        await _run(["buildah", "rmi", image_id.read_text().strip()], directory, made)


async def _run(command: list[str], directory: Path, made: Staging) -> None:
    async with child(command, made, stderr=asyncio.subprocess.STDOUT) as (process, output):
        try:
            async with asyncio.timeout(TIMEOUT_S):
                text, _ = await asyncio.shield(output)
        except TimeoutError:
            raise _failed(directory, f"it takes more than {TIMEOUT_S:.0f} seconds") from None
    if process.returncode:
        raise _failed(directory, text.decode("utf-8", "replace"))


def _failed(directory: Path, output: str) -> ProviderUnavailable:
    reason = " ".join(output.split())[-400:]
    return ProviderUnavailable(f"the Dockerfile of {directory} cannot be built: {reason}", retryable=False)
