"""Images as other programs name them."""

from __future__ import annotations

import asyncio
import tempfile
from pathlib import Path

import pytest

from hone.integrations.images import environment_image, sandbox_image
from hone.sandbox.contract import WriteContext
from hone.tasks.errors import TaskError
from tests.environment.scripted import ScriptedProvider


class Builder(ScriptedProvider):
    """Notes what it is asked to build."""

    def __init__(self) -> None:
        super().__init__()
        self.built: list[tuple[str, dict[str, str], bool]] = []

    async def build(self, image: str, write_context: WriteContext, *, network: bool) -> None:
        with tempfile.TemporaryDirectory() as folder:
            write_context(Path(folder) / "context")
            self.built.append((image, texts_of(Path(folder) / "context"), network))


def texts_of(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def environment(root: Path, *, dockerfile: str | None = None, settings: str | None = None) -> Path:
    folder = root / "environment"
    folder.mkdir()
    if dockerfile is not None:
        (folder / "Dockerfile").write_text(dockerfile)
    if settings is not None:
        (root / "task.toml").write_text(settings)
    return folder


def test_bare_name_is_of_a_registry() -> None:
    assert sandbox_image("python:3.12") == "docker://python:3.12"
    for name in ("host", "docker://python", "rootfs:/images/a"):
        assert sandbox_image(name) == name


def test_task_names_its_image_and_nothing_is_built(tmp_path: Path) -> None:
    settings = '[environment]\ndocker_image = "a/b:1"\nworkdir = "/app"\n'
    folder, builder = environment(tmp_path, dockerfile="RUN make\n", settings=settings), Builder()
    assert asyncio.run(environment_image(folder, builder)) == ("docker://a/b:1", "/app")
    assert builder.built == []


@pytest.mark.parametrize(
    ("settings", "network"),
    [(None, True), ('[environment]\nnetwork_mode = "no-network"\n', False)],
)
def test_dockerfile_is_built_with_the_network_of_the_task(
    tmp_path: Path, settings: str | None, network: bool
) -> None:
    folder, builder = environment(tmp_path, dockerfile="FROM a\nRUN make\n", settings=settings), Builder()
    image, workdir = asyncio.run(environment_image(folder, builder))
    assert builder.built == [(image, {"Dockerfile": "FROM a\nRUN make\n"}, network)]
    assert workdir == ""  # the image's own


def test_environment_without_an_image_is_refused(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"has no Dockerfile, and .*task\.toml names no docker_image"):
        asyncio.run(environment_image(environment(tmp_path), Builder()))
