"""What a task's sandboxes show, and how the agent's sandbox loses everything that reveals the fix."""

from __future__ import annotations

import asyncio
import dataclasses
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import hone.environment.environment as environment_module
from hone.environment import EnvironmentSettings
from hone.environment.environment import resolve_environment
from hone.environment.prepare import prepare_workspace, start_agent_sandbox
from hone.sandbox import ExecResult, SandboxError, SandboxSpec
from hone.sandbox.contract import Command, Mount
from hone.tasks.errors import TaskError
from hone.tasks.formats import FORMATS, r2e
from hone.tasks.harbor.folder import pack
from hone.tasks.python import SITE_TARGET
from hone.types import Environment, Task
from tests.environment.scripted import ScriptedProvider, ScriptedSandbox, ended
from tests.grading.example import make_task
from tests.integrations.harbor.folders import folder

IMAGE = Environment(image="docker://example/image", repo="owner/some.project", commit="c0ffee")


def image_task(**checks: object) -> Task:
    return dataclasses.replace(make_task(**checks), environment=IMAGE)


def local_task(monkeypatch: pytest.MonkeyPatch, layer: Path, **environment: object) -> Task:
    """Return a task of a repository on this machine whose git directory is not made."""
    monkeypatch.setattr(environment_module, "prepare", lambda task, cache: layer)
    return dataclasses.replace(make_task(), environment=Environment(image="repo:/r", **environment))  # type: ignore[arg-type]


def test_repository_in_an_image_brings_its_interpreter(tmp_path: Path):
    found = asyncio.run(resolve_environment(image_task(), tmp_path, EnvironmentSettings()))
    assert (found.image, found.layer, found.bare) == (IMAGE.image, None, False)
    assert any("testbed" in argument for argument in found.wrapper)


@pytest.mark.parametrize("site", [None, Path("/a/site")])
def test_requirements_are_mounted_and_importable(
    site: Path | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = local_task(monkeypatch, tmp_path / "layer", paths=("", "src"))
    monkeypatch.setattr(environment_module, "default_cache_dir", lambda: tmp_path)
    caches: list[Path] = []

    def install(environment: Environment, cache: Path) -> Path | None:
        caches.append(cache)
        return site

    monkeypatch.setattr(environment_module, "install", install)
    found = asyncio.run(resolve_environment(task, tmp_path, EnvironmentSettings()))
    paths = ("/testbed", "/testbed/src")
    assert caches == [tmp_path / "sites"]
    assert (found.image, found.layer, found.paths) == ("host", tmp_path / "layer", paths)
    if site is None:
        assert (found.mounts, found.sites) == ((), ())
        assert found.env == {"PYTHONPATH": ":".join(paths)}
    else:
        assert found.mounts == (Mount(source=site, target=SITE_TARGET),)
        assert found.env == {"PYTHONPATH": ":".join([*paths, SITE_TARGET])}


def virtual_environment(folder: Path, prefix: Path) -> Path:
    """Make the files of a virtual environment whose interpreter lies below `prefix`."""
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "python3").touch()
    (folder / "bin").mkdir(parents=True)
    (folder / "pyvenv.cfg").touch()
    (folder / "bin" / "python").symlink_to(prefix / "bin" / "python3")
    return folder


def test_given_virtual_environment_is_mounted_with_its_interpreter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = local_task(monkeypatch, tmp_path / "layer", paths=("src",))
    venv = virtual_environment(tmp_path / "venv", tmp_path / "python")
    found = asyncio.run(resolve_environment(task, tmp_path, EnvironmentSettings(venv=venv)))
    folders = (venv, tmp_path / "python")
    assert found.mounts == tuple(Mount(source=folder, target=str(folder)) for folder in folders)
    assert (found.image, found.python, found.bare) == ("host", f"{venv}/bin/python", False)
    assert found.env["PYTHONPATH"] == "/testbed/src"


def test_interpreter_of_the_system_is_not_mounted_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    task = local_task(monkeypatch, tmp_path / "layer")
    venv = virtual_environment(tmp_path / "venv", tmp_path / "python")
    (venv / "bin" / "python").unlink()
    (venv / "bin" / "python").symlink_to("/usr/bin/env")
    found = asyncio.run(resolve_environment(task, tmp_path, EnvironmentSettings(venv=venv)))
    assert [mount.source for mount in found.mounts] == [venv]


@pytest.mark.parametrize("missing", ["pyvenv.cfg", "bin/python"])
def test_folder_that_is_no_virtual_environment_is_refused(
    missing: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    task = local_task(monkeypatch, tmp_path / "layer")
    venv = virtual_environment(tmp_path / "venv", tmp_path / "python")
    (venv / missing).unlink()
    with pytest.raises(TaskError, match="is not a virtual environment"):
        asyncio.run(resolve_environment(task, tmp_path, EnvironmentSettings(venv=venv)))


def test_base_of_an_image_is_taken_once(tmp_path: Path):
    provider = ScriptedProvider()
    cache = tmp_path / "caches" / "bases"
    first = asyncio.run(prepare_workspace(image_task(), provider, cache))
    assert asyncio.run(prepare_workspace(image_task(), provider, cache)) == first
    assert first.parent == cache
    (sandbox,) = provider.started
    assert sandbox.downloads == [("/tmp/base/.git", first / ".git")]
    assert (sandbox.spec.image, sandbox.spec.workdir) == (IMAGE.image, IMAGE.workdir)
    assert sandbox.closed


def test_concurrent_callers_share_one_base_and_one_thread(tmp_path: Path):
    provider = ScriptedProvider()

    async def main() -> None:
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with asyncio.TaskGroup() as tasks:
            for _ in range(3):
                tasks.create_task(prepare_workspace(image_task(), provider, tmp_path))

    asyncio.run(main())
    assert len(provider.started) == 1


def test_base_whose_copy_was_interrupted_is_taken_again(tmp_path: Path):
    def fail(command: Command) -> ExecResult:
        return ended(1, stderr=b"caf\xe9 is broken\n")

    with pytest.raises(TaskError):
        asyncio.run(prepare_workspace(image_task(), ScriptedProvider(fail), tmp_path))
    target = asyncio.run(prepare_workspace(image_task(), ScriptedProvider(), tmp_path))
    for file in target.iterdir():
        file.unlink()
    provider = ScriptedProvider()
    assert asyncio.run(prepare_workspace(image_task(), provider, tmp_path)) == target
    assert len(provider.started) == 1


def test_image_without_the_commit_is_refused(tmp_path: Path):
    provider = ScriptedProvider(lambda command: ended(int("cat-file" in command.argv)))
    with pytest.raises(TaskError, match=r"holds no repository with commit c0ffee in /testbed"):
        asyncio.run(prepare_workspace(image_task(), provider, tmp_path))


def test_unreadable_repository_is_refused_with_the_last_line(tmp_path: Path):
    def answer(command: Command) -> ExecResult:
        return ended(128, stderr=b"first\ncaf\xe9\n") if "-c" in command.argv else ended()

    with pytest.raises(TaskError, match=r"that git can read in /testbed: exit code 128: caf.$"):
        asyncio.run(prepare_workspace(image_task(), ScriptedProvider(answer), tmp_path))


def start(task: Task, provider: ScriptedProvider, folder: Path) -> None:
    spec = SandboxSpec(env={"A": "1"}, mounts=(Mount(source=Path("/x"), target="/x"),))
    asyncio.run(start_agent_sandbox(task, folder / "workspace", spec, provider, EnvironmentSettings()))


def test_fix_is_hidden_in_an_image(tmp_path: Path):
    provider = ScriptedProvider()
    start(image_task(parser=r2e.PARSER), provider, tmp_path)
    (command,) = provider.started[0].commands
    assert command.argv[4] == "/testbed"
    assert command.argv[6] == "some[-_.]project"
    assert tuple(command.argv[7:]) == r2e.HIDDEN
    assert not provider.started[0].closed


def test_sandbox_that_shows_the_fix_is_closed(tmp_path: Path):
    provider = ScriptedProvider(lambda command: ended(1))
    with pytest.raises(SandboxError, match=r"cannot remove the fix from its image: exit code 1$"):
        start(image_task(), provider, tmp_path)
    assert provider.started[0].closed


def test_agent_sandbox_has_the_repository_and_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    provider = ScriptedProvider()
    task = local_task(monkeypatch, tmp_path / "layer", workdir="/w", paths=("src",))
    monkeypatch.setattr(environment_module, "install", lambda environment, cache: Path("/a/site"))
    start(task, provider, tmp_path)
    spec = provider.started[0].spec
    assert (spec.image, spec.workdir, spec.layer) == ("host", "/w", tmp_path / "layer")
    assert spec.env == {"A": "1", "PYTHONPATH": f"/w/src:{SITE_TARGET}"}
    assert [mount.target for mount in spec.mounts] == ["/x", "/srv/hone/base.git", SITE_TARGET]
    assert provider.started[0].commands == []


def test_agent_sandbox_of_a_harbor_task_has_its_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    written: dict[str, tuple[bytes, int]] = {}

    async def write(sandbox: ScriptedSandbox, path: str, data: bytes, *, mode: int = 0o644) -> None:
        written[path] = (data, mode)

    monkeypatch.setattr(ScriptedSandbox, "write", write)
    files = {
        **folder("x", ask="a", test="", solution=""),
        "environment/bin/run.sh": pack(b"run", executable=True),
    }
    provider = ScriptedProvider()
    start(FORMATS["harbor"].read({"name": "x", "folder": files}), provider, tmp_path)
    spec = provider.started[0].spec
    assert (spec.image, spec.workdir, spec.layer) == ("host", "/app", None)
    assert spec.env == {"A": "1"}
    assert [mount.target for mount in spec.mounts] == ["/x", "/srv/hone/base.git"]
    assert written == {"/app/start.txt": (b"start\n", 0o644), "/app/bin/run.sh": (b"run", 0o755)}
