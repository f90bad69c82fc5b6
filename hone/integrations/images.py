"""Images as other programs name them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

from hone.tasks.errors import TaskError

_INSTRUCTION = re.compile(r"^\s*([A-Za-z]+)\s+(.*?)\s*$")


def sandbox_image(name: str) -> str:
    """Return the image of `SandboxSpec.image`: a bare name is of a registry, as for Docker."""
    own = name == "host" or name.startswith(("docker://", "rootfs:"))
    return name if own else f"docker://{name}"


def harbor_image(environment: Path) -> tuple[str, str]:
    """Return the image and the workdir ("" is the image's own) of a task's folder `environment`.

    The image is `docker_image` of the task's task.toml, or what a Dockerfile that adds no files starts from.

    Raises TaskError.
    """
    settings = environment.parent / "task.toml"
    if settings.is_file():
        section = tomllib.loads(settings.read_text()).get("environment", {})
        if image := section.get("docker_image"):
            return sandbox_image(image), str(section.get("workdir") or "")
    dockerfile = environment / "Dockerfile"
    if not dockerfile.is_file():
        raise TaskError(f"{environment} has no Dockerfile, and {settings} names no docker_image")
    image, workdir = "", ""
    for line in dockerfile.read_text().splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        found = _INSTRUCTION.match(line)
        name, value = (found[1].upper(), found[2]) if found else ("", line)
        if name == "FROM" and not image and len(value.split()) == 1 and "$" not in value:
            image = value
        elif name == "WORKDIR" and image and value.startswith("/") and "$" not in value:
            workdir = value
        else:
            raise TaskError(
                f"{dockerfile} has the line {line.strip()[:80]!r}, which must be built: build the image, and "
                f"name it in {settings} as docker_image of [environment]"
            )
    if not image:
        raise TaskError(f"{dockerfile} has no FROM")
    return sandbox_image(image), workdir
