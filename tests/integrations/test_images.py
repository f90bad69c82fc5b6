"""Images as other programs name them."""

from __future__ import annotations

from pathlib import Path

import pytest

from hone.integrations.images import harbor_image, sandbox_image
from hone.tasks.errors import TaskError


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


def test_harbor_task_names_its_image(tmp_path: Path) -> None:
    settings = '[environment]\ndocker_image = "a/b:1"\nworkdir = "/app"\n'
    folder = environment(tmp_path, dockerfile="RUN make\n", settings=settings)
    assert harbor_image(folder) == ("docker://a/b:1", "/app")


def test_dockerfile_that_adds_nothing_is_its_base(tmp_path: Path) -> None:
    text = "# a comment\n\nfrom python:3.12\nWORKDIR /app\n"
    assert harbor_image(environment(tmp_path, dockerfile=text)) == ("docker://python:3.12", "/app")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("FROM a\nRUN make\n", "the line 'RUN make', which must be built"),
        ("FROM a\nCOPY x /x\n", "COPY"),
        ("FROM a AS b\n", "AS"),
        ("FROM a\nFROM b\n", "FROM b"),
        ("ARG v=1\nFROM a:$v\n", "ARG"),
        ("FROM a\nWORKDIR app\n", "WORKDIR"),
        ("# nothing\n", "has no FROM"),
        (None, "has no Dockerfile"),
    ],
)
def test_image_that_must_be_built_is_refused(tmp_path: Path, text: str | None, message: str) -> None:
    with pytest.raises(TaskError, match=message):
        harbor_image(environment(tmp_path, dockerfile=text))
