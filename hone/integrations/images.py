"""Images as other programs name them."""

from __future__ import annotations

import asyncio
from pathlib import Path

from hone.environment import built_image
from hone.sandbox import Provider
from hone.tasks.errors import TaskError
from hone.tasks.harbor.config import Environment, parse_config
from hone.tasks.harbor.folder import CONFIG, DOCKERFILE, below, read_folder
from hone.tasks.harbor.serve import image_of


def sandbox_image(name: str) -> str:
    """Return the image of `SandboxSpec.image`: a bare name is of a registry, as for Docker."""
    own = name == "host" or name.startswith(("docker://", "rootfs:"))
    return name if own else f"docker://{name}"


async def environment_image(folder: Path, provider: Provider) -> tuple[str, str]:
    """Return the image and the workdir ("" is the image's own) of a Harbor task's folder `environment`.

    The image is `docker_image` of the task.toml beside the folder, or built from its Dockerfile.

    Raises:
        TaskError: there is neither, or the task.toml is not one of Harbor's.
        ProviderUnavailable: the image cannot be built.
    """
    environment, files = await asyncio.to_thread(_read, folder)
    return await built_image(
        image_of(environment.docker_image or "", files),
        dict(below(files, "environment")),
        provider,
        network=environment.network == "public",
        timeout_s=environment.build_timeout_sec,
    ), environment.workdir or ""


def _read(folder: Path) -> tuple[Environment, dict[str, str]]:
    path = folder.parent / CONFIG
    config = parse_config(path.read_text("utf-8")) if path.is_file() else None
    files = {f"environment/{name}": text for name, text in read_folder(folder).items()}
    if not (config and config.environment.docker_image) and DOCKERFILE not in files:
        raise TaskError(f"{folder} has no Dockerfile, and {path} names no docker_image")
    return config.environment if config else Environment(), files
