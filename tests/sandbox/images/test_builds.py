"""Builds by buildah: once for all callers, without network, and gone with their caller."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from hone.sandbox import ImageUnavailable, ProviderUnavailable
from hone.sandbox.images import Image, ImageStore
from hone.sandbox.images.buildah import group_prefix
from tests.sandbox.images.building import copied, write_context
from tests.sandbox.images.dockerfiles import BASE
from tests.sandbox.images.oci import entry, make_layout, tar
from tests.sandbox.images.test_killed import kill, wait_while_running, workers
from tests.sandbox.images.traces import left
from tests.sandbox.ordinary_user import run_as_ordinary_user
from tests.services.answering import answering
from tests.services.image import base_archive
from tests.services.process import control_groups, require
from tests.services.registry import Registry
from tests.waiting import wait_until

pytestmark = [pytest.mark.sandbox, pytest.mark.timeout(600)]
NAME = "docker://localhost/hone/test"
SLEEP_S = f"1000.{os.getpid()}"  # of the commands of this process's builds


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    require("buildah", "runc")
    return tmp_path_factory.mktemp("built") / "images"


@pytest.fixture(scope="module")
def store(folder: Path) -> ImageStore:
    store = ImageStore(folder, budget_gib=4)
    asyncio.run(store.import_(str(base_archive()), name=BASE))
    return store


@pytest.fixture
def listener() -> Iterator[int]:
    """The port of a server on this machine that answers every connection with `hi`."""
    with answering("127.0.0.1", b"hi") as port:
        yield port


def build(store: ImageStore, context: Path, tag: str, *, network: bool = False) -> Image:
    return asyncio.run(store.build(f"{NAME}:{tag}", copied(context), network=network))


def leftovers(folder: Path) -> list[object]:
    """Return what an ended build should have removed."""
    entries = [path for path in left(folder) if path.startswith(("staging", "locks"))]
    return [*entries, *workers(folder), *control_groups(group_prefix(folder / "builds"))]


def containers(folder: Path) -> str:
    command = ["buildah", "--root", f"{folder}/builds/storage", "--runroot", f"{folder}/builds/run"]
    return subprocess.run([*command, "containers", "-q"], capture_output=True, text=True, check=True).stdout


def test_build_runs_once_for_all_callers(store: ImageStore, folder: Path, tmp_path: Path) -> None:
    text = f"FROM {BASE}\nRUN head -c 8 /dev/urandom | od > /random\nENV A=b\nWORKDIR /app\nUSER 7\n"
    context = write_context(tmp_path / "context", text)
    other = ImageStore(folder, budget_gib=4)

    async def run() -> list[Image]:
        builds = [
            each.build(f"{NAME}:once", copied(context), network=False) for each in (store, store, other)
        ]
        return await asyncio.gather(*builds)

    images = asyncio.run(run())
    assert len({image.digest for image in images}) == 1
    assert (images[0].env["A"], images[0].workdir, images[0].user) == ("b", "/app", "7")
    (context / "Dockerfile").write_text("FROM nothing\nRUN false\n")
    assert build(store, context, "once").digest == images[0].digest
    assert leftovers(folder) == []
    assert containers(folder) == ""


def test_context_of_a_stored_image_is_not_written(store: ImageStore, tmp_path: Path) -> None:
    image = build(store, write_context(tmp_path / "context", "FROM scratch\nCOPY Dockerfile /\n"), "stored")
    assert asyncio.run(store.build(f"{NAME}:stored", unused, network=False)).digest == image.digest


def unused(made: Path) -> None:
    raise AssertionError(f"a build writes its context into {made}")


@pytest.mark.full
def test_equal_first_steps_share_their_layers(store: ImageStore, tmp_path: Path) -> None:
    first = f"FROM {BASE}\nCOPY a /a\nRUN head -c 8 /dev/urandom | od > /random\n"
    one = build(store, write_context(tmp_path / "1", f"{first}RUN echo 1 > /x\n", {"a": "a"}), "shared-1")
    two = build(store, write_context(tmp_path / "2", f"{first}RUN echo 2 > /x\n", {"a": "a"}), "shared-2")
    assert one.layers[:-1] == two.layers[:-1]
    assert one.layers[-1] != two.layers[-1]


def test_build_has_a_network_only_where_it_is_allowed(
    store: ImageStore, tmp_path: Path, listener: int
) -> None:
    program = f"import socket; print(socket.create_connection(('127.0.0.1', {listener})).recv(2).decode())"
    context = write_context(tmp_path / "context", f'FROM {BASE}\nRUN python3 -c "{program}" > /said\n')
    with pytest.raises(ProviderUnavailable, match='its task is not "public"'):
        build(store, context, "network")
    image = build(store, context, "network", network=True)
    assert (image.layers[-1] / "said").read_text() == "hi\n"


def test_cancelled_build_leaves_nothing(store: ImageStore, folder: Path, tmp_path: Path) -> None:
    script = f"setsid sleep {SLEEP_S} & sleep {SLEEP_S} & sleep {SLEEP_S}"
    context = write_context(tmp_path / "context", f"FROM {BASE}\nRUN {script}\n")

    async def run() -> None:
        task = asyncio.create_task(store.build(f"{NAME}:cancelled", copied(context), network=False))
        await asyncio.to_thread(wait_until, lambda: len(sleeping()) == 3 or task.done())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(run())
    assert sleeping() == []
    assert leftovers(folder) == []
    assert asyncio.run(store.find(f"{NAME}:cancelled")) is None
    build(store, write_context(tmp_path / "next", "FROM scratch\nCOPY Dockerfile /\n"), "next")
    assert containers(folder) == "", "the next build removes the container"


def sleeping() -> list[str]:
    found: list[str] = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[:2] == [b"sleep", SLEEP_S.encode()]:
            found.append(path.parent.name)
    return found


_BUILD = """
import asyncio, shutil, sys
from pathlib import Path
from hone.sandbox.images import ImageStore

store = ImageStore(Path(sys.argv[1]), budget_gib=4)
copy = lambda made: shutil.copytree(sys.argv[2], made)
asyncio.run(store.build("docker://localhost/hone/test:killed", copy, network=False))
"""


@pytest.mark.full
def test_killed_process_takes_its_build_along(store: ImageStore, folder: Path, tmp_path: Path) -> None:
    context = write_context(
        tmp_path / "context", f"FROM {BASE}\nRUN setsid sleep {SLEEP_S} & sleep {SLEEP_S}\n"
    )
    process = subprocess.Popen([sys.executable, "-c", _BUILD, str(folder), str(context)])
    wait_while_running(lambda: len(sleeping()) == 2, process)
    kill(process, folder)
    wait_until(lambda: not sleeping(), "a command of the build outlived it")
    fresh = ImageStore(folder, budget_gib=4)
    build(fresh, write_context(tmp_path / "next", "FROM scratch\nCOPY Dockerfile /\n"), "next-2")
    assert leftovers(folder) == []
    assert containers(folder) == ""


def test_missing_builder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path}/none.sock")
    context = write_context(tmp_path / "context", "FROM scratch\nCOPY Dockerfile /\n")
    with pytest.raises(ProviderUnavailable, match="buildah is missing, and no Docker engine answers"):
        build(ImageStore(tmp_path / "images", budget_gib=1), context, "none")


def test_missing_built_image_is_not_looked_for_in_a_registry(store: ImageStore) -> None:
    with pytest.raises(ImageUnavailable, match="was removed") as raised:
        asyncio.run(store.ensure(f"{NAME}:none"))
    assert raised.value.retryable


@pytest.mark.full
def test_base_image_comes_from_a_registry(registry: Registry, tmp_path: Path) -> None:
    require("buildah", "runc")
    name = registry.push(base_archive(), "team/base:v1")
    store = ImageStore(tmp_path / "images", budget_gib=4)
    context = write_context(tmp_path / "context", f"FROM {name}\nRUN echo built > /x\n")
    image = build(store, context, "registry")
    assert (image.layers[-1] / "x").read_text() == "built\n"
    assert image.layers[0] == asyncio.run(store.ensure(name)).layers[0]
    (context / "Dockerfile").write_text(f"FROM {registry.address}/team/none:v1\n")
    with pytest.raises(ImageUnavailable, match="there is no image") as raised:
        build(store, context, "missing")
    assert raised.value.problem == "unknown_image"


@pytest.mark.full
def test_image_without_history_is_a_base(store: ImageStore, tmp_path: Path) -> None:
    layout = make_layout(tmp_path / "layout", [tar(entry("base", b"base"))])
    asyncio.run(store.import_(str(layout), name="no-history"))
    text = "FROM no-history\nCOPY a /\nCOPY b /\n"
    image = build(store, write_context(tmp_path / "context", text, {"a": "a", "b": "b"}), "history")
    assert (image.layers[0] / "base").is_file()
    assert (image.layers[-1] / "b").is_file()


@pytest.mark.full
def test_cache_of_a_build_is_not_seen_by_another(store: ImageStore, tmp_path: Path) -> None:
    mount = "RUN --mount=type=cache,target=/cache"
    for tag in ("cache-1", "cache-2"):  # of different first steps, so that both run the second one
        text = f"FROM {BASE}\nRUN echo {tag} > /tag\n{mount} ls -A /cache > /seen && touch /cache/mark\n"
        image = build(store, write_context(tmp_path / tag, text), tag)
        assert (image.layers[-1] / "seen").read_text() == ""
        assert not (image.layers[-1] / "cache/mark").exists()


@pytest.mark.full
def test_prune_removes_what_builds_keep(tmp_path: Path) -> None:
    require("buildah", "runc")
    store = ImageStore(tmp_path / "images", budget_gib=4)
    build(store, write_context(tmp_path / "context", "FROM scratch\nCOPY Dockerfile /\n"), "pruned")
    assert (tmp_path / "images/builds/storage").is_dir()
    assert asyncio.run(store.prune(0)) == 1
    assert [path.name for path in (tmp_path / "images/builds").iterdir()] == ["lock"]
    build(store, write_context(tmp_path / "context", "FROM scratch\nCOPY Dockerfile /\n"), "pruned")


_AS_USER = """
import asyncio, sys
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from hone.sandbox.images import ImageStore

async def main():
    store = ImageStore(Path.home() / "images", budget_gib=4)
    await store.import_(sys.argv[1], name="python:3.12-slim")
    def write(context):
        context.mkdir()
        (context / "Dockerfile").write_text(
            "FROM python:3.12-slim\\nRUN id -u > /x && chown 7:8 /x && wc -l < /proc/net/dev >> /x\\n"
        )
    image = await store.build("docker://localhost/hone/test:user", write, network=False)
    print((image.layers[-1] / "x").read_text().split())
    print(await store.prune(0), [path.name for path in (Path.home() / "images/builds").iterdir()])
    print((Path.home() / ".local/share/containers/storage").exists())

asyncio.run(main())
"""


@pytest.mark.full
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes an ordinary user")
def test_ordinary_user_builds_in_a_user_namespace(tmp_path: Path) -> None:
    require("buildah", "runc", "newuidmap")
    archive = tmp_path / "base.tar"
    archive.write_bytes(base_archive().read_bytes())
    for path in (archive, *archive.parents):
        path.chmod(path.stat().st_mode | 0o005)
    root = str(Path(__file__).parents[3])
    command = [sys.executable, "-c", _AS_USER, str(archive), root]
    done = run_as_ordinary_user(command, account=True)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["['0', '3']", "2 ['lock']", "False"]
    refused = run_as_ordinary_user(command)
    assert refused.returncode != 0
    assert "gives it no range of ids" in refused.stderr
