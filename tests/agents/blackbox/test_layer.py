"""Layers with the tools of programs: built once, checked, from pinned archives."""

from __future__ import annotations

import hashlib
import io
import json
import os
import subprocess
import sys
import tarfile
import threading
from pathlib import Path

import pytest

from hone.agents.blackbox import Program, is_prepared, prepare
from hone.agents.blackbox import layer as layer_module
from hone.agents.blackbox.layer import RECORD
from hone.agents.blackbox.program import (
    ArchiveInstall,
    DirectoryInstall,
    Exit,
    NpmInstall,
    PipInstall,
    Run,
    Runtime,
)
from hone.agents.scaffold import ScaffoldError
from hone.tasks.python.interpreters import find_interpreters


def program(install: object, runtime: Runtime | None = None, name: str = "tool") -> Program:
    return Program(
        name=name,
        wire="openai",
        install=install,  # type: ignore[arg-type]
        runtime=runtime,
        run=Run(command=("tool",), prompt=""),
        exits=(Exit(ending="submitted"),),
    )


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    folder = tmp_path / "tools"
    (folder / "lib").mkdir(parents=True)
    (folder / "tool").write_text("#!/bin/sh\necho tool\n")
    (folder / "tool").chmod(0o700)
    (folder / "lib" / "data").write_text("data")
    (folder / "link").symlink_to("tool")
    return folder


def test_layer_is_built_once_per_content_and_readable_by_all(tools: Path, tmp_path: Path) -> None:
    wanted = program(DirectoryInstall(kind="directory", source=tools))
    cache = tmp_path / "cache"
    assert not is_prepared(wanted, cache)
    layer = prepare(wanted, cache)
    assert is_prepared(wanted, cache)
    assert prepare(wanted, cache) == layer
    assert (layer / "app" / "tool").stat().st_mode & 0o777 == 0o755
    assert (layer / "app" / "lib" / "data").stat().st_mode & 0o777 == 0o644
    assert (layer / "app" / "link").readlink() == Path("tool")
    (tools / "lib" / "data").write_text("other")
    other = prepare(wanted, cache)
    assert other != layer
    assert (other / "app" / "lib" / "data").read_text() == "other"
    names = {path.name for path in cache.iterdir() if not path.name.startswith(".")}
    assert names == {layer.name, other.name}


@pytest.mark.parametrize("change", ["content", "new file", "mode", "link", "record"])
def test_changed_layer_is_refused(tools: Path, tmp_path: Path, change: str) -> None:
    wanted = program(DirectoryInstall(kind="directory", source=tools))
    layer = prepare(wanted, tmp_path / "cache")
    if change == "content":
        (layer / "app" / "lib" / "data").write_text("dato")
    elif change == "new file":
        (layer / "app" / "sitecustomize.py").touch()
    elif change == "mode":
        (layer / "app" / "lib" / "data").chmod(0o755)
    elif change == "link":
        (layer / "app" / "link").unlink()
        (layer / "app" / "link").symlink_to("lib")
    else:
        (layer / RECORD).write_text(json.dumps({"tree": "0"}))
    with pytest.raises(ScaffoldError, match="were changed after they were built: remove that directory"):
        prepare(wanted, tmp_path / "cache")


def test_concurrent_builders_make_one_layer(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted, made, built = program(DirectoryInstall(kind="directory", source=tools)), [], []
    real = layer_module.make_readable
    monkeypatch.setattr(layer_module, "make_readable", lambda tree: (built.append(1), real(tree)))
    threads = [
        threading.Thread(target=lambda: made.append(prepare(wanted, tmp_path / "cache"))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(made)) == 1
    assert len(made) == 8
    assert built == [1]


@pytest.mark.slow
def test_partial_layer_of_a_killed_builder_is_discarded(tools: Path, tmp_path: Path) -> None:
    code = (
        "import os, sys\nfrom pathlib import Path\n"
        "from hone.agents.blackbox import layer, prepare\n"
        "from tests.agents.blackbox.test_layer import program\n"
        "from hone.agents.blackbox.program import DirectoryInstall\n"
        "layer.make_readable = lambda target: os.kill(os.getpid(), 9)\n"
        "prepare(program(DirectoryInstall(kind='directory', source=Path(sys.argv[1]))), Path(sys.argv[2]))"
    )
    cache = tmp_path / "cache"
    killed = subprocess.run(
        [sys.executable, "-c", code, str(tools), str(cache)], cwd=Path(__file__).parents[3], check=False
    )
    assert killed.returncode == -9
    wanted = program(DirectoryInstall(kind="directory", source=tools))
    assert not is_prepared(wanted, cache)
    layer = prepare(wanted, cache)
    assert (layer / "app" / "tool").is_file()
    assert [path for path in cache.iterdir() if path.name.endswith(".partial")] == []


def archive(path: Path, *members: tarfile.TarInfo | tuple[str, bytes]) -> str:
    """Write a tar archive; returns its digest."""
    with tarfile.open(path, "w:gz") as tar:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                tar.addfile(member)
                continue
            info = tarfile.TarInfo(member[0])
            info.size, info.mode = len(member[1]), 0o755
            tar.addfile(info, io.BytesIO(member[1]))
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_archive_with_another_digest_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tool.tar.gz"
    digest = archive(path, ("bin/tool", b"#!/bin/sh\n"))
    layer = prepare(program(ArchiveInstall(kind="archive", source=str(path), sha256=digest)), tmp_path / "c")
    assert os.access(layer / "app" / "bin" / "tool", os.X_OK)
    wrong = program(ArchiveInstall(kind="archive", source=str(path), sha256="0" * 64))
    with pytest.raises(ScaffoldError, match=f"^{path} has the digest {digest}, not 0000"):
        prepare(wrong, tmp_path / "c")
    assert not is_prepared(wrong, tmp_path / "c")


@pytest.mark.parametrize("name", ["../outside", "link"])
def test_archive_that_leaves_the_layer_is_refused(tmp_path: Path, name: str) -> None:
    info = tarfile.TarInfo(name)
    if name == "link":
        info.type, info.linkname = tarfile.SYMTYPE, "/etc/passwd"
    path = tmp_path / "tool.tar.gz"
    digest = archive(path, info)
    wanted = program(ArchiveInstall(kind="archive", source=str(path), sha256=digest))
    with pytest.raises(ScaffoldError, match="cannot be unpacked"):
        prepare(wanted, tmp_path / "cache")
    assert [entry.name for entry in (tmp_path / "cache").iterdir() if "outside" in entry.name] == []


@pytest.mark.parametrize(
    ("install", "sentence"),
    [
        (DirectoryInstall(kind="directory", source=Path("/missing")), "^/missing is not a directory"),
        (PipInstall(kind="pip", requirements=Path("/missing.txt")), "^cannot read /missing.txt"),
        (ArchiveInstall(kind="archive", source="/missing.tgz", sha256="0" * 64), "^cannot read /missing.tgz"),
        (
            NpmInstall(kind="npm", package="p", version="1.0.0", integrity="sha512-A=", lock=Path("/no")),
            "cannot read /no",
        ),
    ],
)
def test_missing_tools_are_an_error(tmp_path: Path, install: object, sentence: str) -> None:
    with pytest.raises(ScaffoldError, match=sentence):
        prepare(program(install), tmp_path)


def test_missing_or_old_interpreter_is_an_error(
    tools: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install = DirectoryInstall(kind="directory", source=tools)
    old = program(install, Runtime(program="python3", version="99.1"))
    with pytest.raises(ScaffoldError, match=r"needs Python 99\.1, which this machine does not have"):
        prepare(old, tmp_path / "cache")
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ScaffoldError, match="node is not on this machine's PATH"):
        prepare(program(install, Runtime(program="node")), tmp_path / "cache")
    npm = NpmInstall(kind="npm", package="p", version="1.0.0", integrity="sha512-A=")
    with pytest.raises(ScaffoldError, match="npm is not on this machine's PATH"):
        prepare(program(npm), tmp_path / "cache")


def test_python_newer_than_that_of_hone_is_found_on_this_machine(tools: Path, tmp_path: Path) -> None:
    newer = f"{sys.version_info.major}.{sys.version_info.minor + 1}"
    if all(each.minor != newer for each in find_interpreters()):
        pytest.skip(f"there is no Python {newer} on this machine")
    (tools / "module.py").write_text("")
    runtime = Runtime(program="python3", version=newer)
    layer = prepare(program(DirectoryInstall(kind="directory", source=tools), runtime), tmp_path / "cache")
    assert (layer / "python" / "lib" / f"python{newer}" / "os.py").is_file()
    assert f"python/bin/python{newer}" in (layer / "bin" / "python3").read_text()
    tag = f"cpython-{newer.replace('.', '')}"
    assert [path.name for path in (layer / "app").rglob("*.pyc")] == [f"module.{tag}.pyc"]
    environment = {"PYTHONHOME": str(layer / "python"), "LD_LIBRARY_PATH": str(layer / "lib")}
    printed = subprocess.run(
        [layer / "python" / "bin" / f"python{newer}", "-c", "import json, ssl, sys; print(sys.version)"],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    assert printed.stdout.startswith(f"{newer}.")


def test_interpreter_comes_from_the_named_archive(tools: Path, tmp_path: Path) -> None:
    path = tmp_path / "node.tar.gz"
    node = Path("/bin/sleep").resolve().read_bytes()  # prints a version and needs libraries
    digest = archive(path, ("node-v22/bin/node", node))
    runtime = Runtime(program="node", archive=str(path), sha256=digest, version="8")
    layer = prepare(program(DirectoryInstall(kind="directory", source=tools), runtime), tmp_path / "cache")
    assert (layer / "libexec" / "node").read_bytes() == node
    assert "/srv/hone/agents/tool/loader --library-path" in (layer / "bin" / "node").read_text()
    assert list((layer / "lib").glob("libc.so*"))
    empty = archive(path, ("README", b""))
    other = Runtime(program="node", archive=str(path), sha256=empty)
    with pytest.raises(ScaffoldError, match="holds no bin/node"):
        prepare(program(DirectoryInstall(kind="directory", source=tools), other), tmp_path / "cache")
