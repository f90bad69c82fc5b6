"""`hone images` as a user meets it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli import in_process
from tests.sandbox.images.oci import entry, make_layout, push, tar
from tests.services.process import reserve_port
from tests.services.registry import Registry

pytestmark = pytest.mark.sandbox


class Hone:
    def __init__(self, cache: Path) -> None:
        self.cache = cache

    def __call__(self, *arguments: object, code: int = 0) -> str:
        """Run `hone images`; return its stdout, or its stderr when stdout is empty."""
        done = in_process.hone("images", *arguments, "--cache-dir", self.cache)
        assert done.returncode == code, done.stderr
        return done.stdout or done.stderr


@pytest.fixture
def hone(tmp_path: Path) -> Hone:
    return Hone(tmp_path / "cache")


def pushed(registry: Registry, tmp_path: Path, path: str) -> str:
    layout = make_layout(tmp_path / path.replace("/", "-").replace(":", "-"), [tar(entry(path[:9], b"x"))])
    return push(layout, f"{registry.address}/{path}")


@pytest.mark.parametrize("command", ["pull", "import", "export", "list", "prune"])
def test_help_of_every_command_has_an_example(command: str) -> None:
    assert f"Example: hone images {command}" in in_process.hone("images", command, "--help").stdout


@pytest.mark.full
def test_image_is_pulled_listed_exported_and_imported(hone: Hone, registry: Registry, tmp_path: Path) -> None:
    name = pushed(registry, tmp_path, "cli/one:v1")
    assert "1 of 1 images are stored" in hone("pull", name)
    (listed,) = json.loads(hone("list", "--json"))
    assert listed["name"] == name
    assert name in hone("list")
    hone("export", name, tmp_path / "one.tar")
    assert hone("prune", "--unused").startswith("1 images removed; 0.00 GiB")
    assert json.loads(hone("list", "--json")) == []
    assert listed["digest"] in hone("import", tmp_path / "one.tar")
    assert name in hone("list")
    assert hone("prune", "--to", "1").startswith("0 images removed")


@pytest.mark.full
def test_list_is_pulled_through_a_proxy(hone: Hone, registry: Registry, tmp_path: Path) -> None:
    for path in ("hub/swe/a:v1", "hub/swe/b:latest"):
        pushed(registry, tmp_path, path)
    names = tmp_path / "images.txt"
    names.write_text("# images\nswe/a:v1\n\ndocker.io/swe/b  # the latest\nswe/a:v1\nswe/missing:v1\n")
    through = (
        "pull",
        "--list",
        names,
        "--proxy",
        f"{registry.address}/hub/",
        "--source-prefix",
        "docker.io/",
    )
    text = hone(*through, code=1)
    assert f"swe/missing:v1: there is no image {registry.address}/hub/swe/missing:v1" in text
    assert "2 of 3 images are stored." in text
    kept = {image["name"] for image in json.loads(hone("list", "--json"))}
    assert kept == {"docker.io/swe/a:v1", "docker.io/swe/b:latest"}
    names.write_text("swe/a:v1\nswe/b\n")
    nowhere = ("--proxy", f"localhost:{reserve_port()}/", "--source-prefix", "docker.io/")
    assert "2 of 2 images are stored." in hone("pull", "--list", names, *nowhere)


@pytest.mark.parametrize(
    ("arguments", "code", "text"),
    [
        (["pull"], 2, "no image to pull"),
        (["pull", "x", "--source-prefix", "y"], 2, "pass both"),
        (["pull", "--list", "/missing"], 1, "No such file"),
        (["import", "/missing"], 1, "is not an image"),
        (["export", "missing", "/tmp/x.tar"], 1, "is not on this machine"),
        (["prune", "--unused", "--to", "1"], 2, "exclude each other"),
    ],
)
def test_wrong_arguments_give_one_sentence(hone: Hone, arguments: list[str], code: int, text: str) -> None:
    sentence = [line for line in hone(*arguments, code=code).splitlines() if line.startswith("hone: ")]
    assert len(sentence) == 1
    assert text in sentence[0]
