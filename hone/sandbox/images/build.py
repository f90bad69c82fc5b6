"""Builds a directory with a Dockerfile: by the Docker engine where one answers, else by buildah."""

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
from hone.sandbox.images.staging import Staging
from hone.utils.concurrency import run_in_thread

RESULT = "built"  # the OCI layout that buildah writes in the staging directory
TIMEOUT_S = 7200.0
_ANSWER_S = 5.0


@contextlib.asynccontextmanager
async def built(directory: Path, made: Staging, daemon: str) -> AsyncGenerator[str]:
    """Build; yield the image's name in the engine, removed at the end, or "" when it lies in RESULT.

    Raises ProviderUnavailable when nothing can build, or the Dockerfile fails.
    """
    ignores = (directory / ".dockerignore").is_file()  # which the engine leaves to its clients to apply
    async with aiodocker.Docker(daemon) as docker:
        if not ignores and await _answers(docker):
            tag = f"hone-build:{secrets.token_hex(8)}"
            try:
                await _build_by_engine(docker, directory, made, tag)
                yield tag
            finally:
                with contextlib.suppress(aiodocker.DockerError):  # the build failed before there was one
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
        async with asyncio.timeout(_ANSWER_S):
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
    number = made.directory / "iid"
    await _run(["buildah", "bud", "--iidfile", str(number), str(directory)], directory, made)
    try:
        await _run(["buildah", "push", number.read_text().strip(), f"oci:{RESULT}:latest"], directory, made)
    finally:
        await _run(["buildah", "rmi", number.read_text().strip()], directory, made)


async def _run(command: list[str], directory: Path, made: Staging) -> None:
    process = await asyncio.create_subprocess_exec(
        *("setpriv", "--pdeathsig", "KILL", *command),
        cwd=made.directory,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        pass_fds=(made.lock.fd,),
    )
    reading = asyncio.create_task(process.communicate())
    try:
        async with asyncio.timeout(TIMEOUT_S):
            said, _ = await asyncio.shield(reading)
    except TimeoutError:
        raise _failed(directory, f"it takes more than {TIMEOUT_S:.0f} seconds") from None
    finally:
        if not reading.done():
            with contextlib.suppress(ProcessLookupError):
                process.kill()
            await reading
    if process.returncode:
        raise _failed(directory, said.decode("utf-8", "replace"))


def _failed(directory: Path, said: str) -> ProviderUnavailable:
    reason = " ".join(said.split())[-400:]
    return ProviderUnavailable(f"the Dockerfile of {directory} cannot be built: {reason}", retryable=False)
