"""Archives in and out, layouts, Docker engines and Dockerfiles."""

from __future__ import annotations

import asyncio
import gzip
import shutil
import subprocess
from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images import Image, ImageStore
from tests.sandbox.images.oci import entry, gz, make_layout, tar
from tests.sandbox.images.traces import left
from tests.services.engines import Engine
from tests.services.image import BASE_IMAGE, base_archive
from tests.services.process import require

pytestmark = pytest.mark.sandbox

LAYERS = [tar(entry("base", b"base")), tar(entry("top", b"top"))]
CONFIG = {"Env": ["A=b"], "WorkingDir": "/w", "User": "7:8"}


def imported(store: ImageStore, source: object, name: str = "") -> Image:
    return asyncio.run(store.import_(str(source), name=name))


def test_exported_image_is_imported_with_its_digest(store: ImageStore, tmp_path: Path) -> None:
    image = imported(store, make_layout(tmp_path / "layout", LAYERS, config=CONFIG), name="shop/x:v1")
    archive = tmp_path / "odd: name.tar"
    asyncio.run(store.export("shop/x:v1", archive))
    elsewhere = ImageStore(tmp_path / "elsewhere", budget_gib=1)
    back = imported(elsewhere, archive)
    assert (back.name, back.digest) == (image.name, image.digest)
    assert (back.env, back.workdir, back.user) == ({"A": "b"}, "/w", "7:8")
    assert [layer.name for layer in back.layers] == [layer.name for layer in image.layers]
    asyncio.run(elsewhere.export("shop/x:v1", tmp_path / "again.tar"))
    assert imported(store, tmp_path / "again.tar", name="again").digest == image.digest
    assert not list(tmp_path.glob(".hone-*"))


def test_failed_export_keeps_the_old_file(store: ImageStore, tmp_path: Path) -> None:
    imported(store, make_layout(tmp_path / "layout", LAYERS), name="x")
    for blob in (tmp_path / "images/blobs/sha256").iterdir():
        if blob.read_bytes()[:2] == b"\x1f\x8b":
            blob.write_bytes(b"damaged")
    archive = tmp_path / "x.tar"
    archive.write_text("before")
    with pytest.raises(ImageUnavailable) as raised:
        asyncio.run(store.export("x", archive))
    assert raised.value.problem == "damaged_image"
    assert archive.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["images", "layout", "x.tar"]
    with pytest.raises(ImageUnavailable, match="is not on this machine"):
        asyncio.run(store.export("y", archive))


@pytest.mark.parametrize("packed", [False, True])
def test_docker_save_archive_is_imported(store: ImageStore, tmp_path: Path, packed: bool) -> None:
    archive = tmp_path / "no-suffix"
    layout = make_layout(tmp_path / "layout", LAYERS, config=CONFIG)
    subprocess.run(
        ["skopeo", "copy", "--quiet", f"oci:{layout}:latest", f"docker-archive:{archive}:shop/saved:v2"],
        check=True,
    )
    if packed:
        archive.write_bytes(gzip.compress(archive.read_bytes()))
    image = imported(store, archive)
    assert image.name == "docker.io/shop/saved:v2"
    assert (image.env, image.workdir, image.user) == ({"A": "b"}, "/w", "7:8")
    assert [next(layer.iterdir()).name for layer in image.layers] == ["base", "top"]


def test_unnamed_image_needs_a_name(store: ImageStore, directory: Path, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "layout", LAYERS)
    with pytest.raises(ImageUnavailable, match="give it one"):
        imported(store, layout)
    assert left(directory) == []
    assert imported(store, layout, name="named").name == "docker.io/library/named:latest"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"text",
        gz(b"text"),
        tar(entry("a", b"x")),
        tar(entry("manifest.json", b"[]")),
        tar(entry("manifest.json", b"{")),
        tar(entry("manifest.json", b'[{"RepoTags": ["x"], "Layers": ["../../x"], "Config": "/etc/passwd"}]')),
    ],
    ids=["empty", "text", "packed text", "archive", "no image", "no list", "files elsewhere"],
)
def test_file_that_is_no_image_archive_is_damaged(
    store: ImageStore, directory: Path, tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "file").write_bytes(content)
    with pytest.raises(ImageUnavailable) as raised:
        imported(store, tmp_path / "file", name="x")
    assert raised.value.problem in ("damaged_image", "unknown_image")
    assert "\n" not in str(raised.value)
    assert left(directory) == []


def test_unknown_source_error_lists_the_sources(store: ImageStore, tmp_path: Path) -> None:
    for source in (tmp_path, tmp_path / "missing"):
        with pytest.raises(
            ImageUnavailable, match="a directory with an OCI layout, or one with a Dockerfile"
        ):
            imported(store, source)


@pytest.mark.full
def test_image_is_imported_from_a_docker_engine(docker: Engine, directory: Path) -> None:
    store = ImageStore(directory, budget_gib=4, docker_url=docker.url)
    image = imported(store, f"docker-daemon:{BASE_IMAGE}")
    assert image.name == f"docker.io/library/{BASE_IMAGE}"
    assert (image.layers[0] / "usr/bin/git").is_file()
    with pytest.raises(ImageUnavailable) as raised:
        imported(store, "docker-daemon:no-such-image")
    assert raised.value.problem == "unknown_image"


def test_unreachable_engine_is_named(directory: Path, tmp_path: Path) -> None:
    store = ImageStore(directory, budget_gib=1, docker_url=f"unix://{tmp_path}/none.sock")
    with pytest.raises(ImageUnavailable, match="Cannot connect") as raised:
        imported(store, "docker-daemon:x")
    assert (raised.value.problem, raised.value.retryable) == ("registry_unavailable", True)


@pytest.fixture
def context(tmp_path: Path) -> Path:
    folder = tmp_path / "context"
    folder.mkdir()
    (folder / "Dockerfile").write_text("FROM scratch\nCOPY hello /app/\nENV A=b\nWORKDIR /app\nUSER 7\n")
    (folder / "hello").write_text("hello")
    return folder


def test_engine_builds_a_dockerfile(docker: Engine, directory: Path, context: Path) -> None:
    store = ImageStore(directory, budget_gib=1, docker_url=docker.url)
    image = imported(store, context, name="built")
    assert any((layer / "app/hello").is_file() for layer in image.layers)
    assert (image.env["A"], image.workdir, image.user) == ("b", "/app", "7")
    with docker.client() as client:
        assert "hone-build" not in client.get("/images/json").text


def test_failed_build_reports_the_reason(docker: Engine, directory: Path, context: Path) -> None:
    store = ImageStore(directory, budget_gib=1, docker_url=docker.url)
    (context / "Dockerfile").write_text("FROM scratch\nCOPY missing /\n")
    with pytest.raises(ProviderUnavailable, match="missing") as raised:
        imported(store, context, name="built")
    assert "\n" not in str(raised.value)
    assert left(directory) == []


def test_engine_refuses_what_its_api_would_ignore(docker: Engine, directory: Path, context: Path) -> None:
    store = ImageStore(directory, budget_gib=1, docker_url=docker.url)
    (context / ".dockerignore").write_text("secret\n")
    with pytest.raises(ProviderUnavailable, match="build it with buildah"):
        imported(store, context, name="built")


def test_buildah_builds_without_an_engine(store: ImageStore, context: Path) -> None:
    require("buildah")
    (context / ".dockerignore").write_text("secret\n")
    (context / "secret").write_text("secret")
    (context / "Dockerfile").write_text("FROM scratch\nCOPY . /app/\nUSER 7\n")
    image = imported(store, context, name="built")
    assert image.user == "7"
    assert (image.layers[0] / "app/hello").is_file()
    assert not (image.layers[0] / "app/secret").exists()
    with pytest.raises(ImageUnavailable, match="give it one"):
        imported(store, context)


@pytest.mark.full
def test_real_image_archive_is_imported(store: ImageStore) -> None:
    image = imported(store, base_archive())
    assert image.name == f"docker.io/library/{BASE_IMAGE}"
    assert shutil.which("bash", path=str(image.layers[0] / "usr/bin")) is not None
