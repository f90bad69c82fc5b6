import fcntl
import multiprocessing
import os
import re
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import ModuleType

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.python import SITE_TARGET, compiled, install, tool
from hone.tasks.python.interpreters import own_interpreter
from hone.types import Environment
from tests.tasks.index import index

__all__ = ["index"]

STEPS = ("install", "compile", "record")  # of a build; the last one is followed by `make_readable`


def environment(*requirements: str, distribution: str = "") -> Environment:
    return Environment(image="repo:/x", requirements=requirements, distribution=distribution)


def python(site: Path, code: str) -> str:
    env = {"PATH": "/usr/bin:/bin", "PYTHONPATH": str(site)}
    run = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return run.stdout.strip()


def test_installed_packages_can_be_imported_by_any_user(index, tmp_path):
    index.add(
        "tool", "3.0", ["nowhere"], {"tests/__init__.py": "", "old.py": "print 1"}, {"tool": "tool:main"}
    )
    before = os.umask(0o077)
    try:
        pins = environment("click==1.0", "tool==3.0", distribution="My.Thing==1.5")
        site = install(pins, tmp_path / "cache")
    finally:
        os.umask(before)
    assert site is not None
    code = "import click, importlib.metadata as m; print(click.__version__, m.version('my-thing'))"
    assert python(site, code) == "1.0 1.5"
    assert not (site / "tests").exists()
    assert (site / "bin" / "tool").read_text().startswith("#!/usr/bin/env python3\n")
    for path in [site, *site.rglob("*")]:
        needed = 0o555 if path.is_dir() else 0o444
        assert path.stat().st_mode & needed == needed, path
    compiled = (site / "__pycache__" / f"click.{sys.implementation.cache_tag}.pyc").read_bytes()
    assert compiled[4:8] == b"\1\0\0\0"  # hash-based, unchecked
    assert f"{SITE_TARGET}/click.py".encode() in compiled
    names = {path.name for path in site.iterdir()}
    assert names >= {"click.py", "My_Thing-1.5.dist-info"}
    assert not names & {"requirements.txt", ".lock"}


def test_second_install_needs_no_index(index, tmp_path, monkeypatch):
    first = install(environment("six==2.0", "click==1.0"), tmp_path / "cache")
    monkeypatch.setenv("UV_DEFAULT_INDEX", (tmp_path / "gone").as_uri())
    assert install(environment("click==1.0", "six==2.0"), tmp_path / "cache") == first
    assert re.fullmatch(r"site-[0-9a-f]+", first.name)  # needs no quotes in a shell
    with pytest.raises(TaskError, match="cannot be installed"):
        install(environment("click==2.0"), tmp_path / "cache")
    assert [p.name for p in (tmp_path / "cache").iterdir() if p.name[0] != "."] == [first.name]


def test_no_requirements_need_no_directory(tmp_path):
    assert install(environment(), tmp_path / "cache") is None
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    "pin", ["click", "click>=1", "--index-url==1", "click==1 --pre", "click==1\nsix==2", "a==@"]
)
def test_only_pins_are_installed(tmp_path, pin):
    with pytest.raises(TaskError, match="write name==version"):
        install(environment(pin), tmp_path)


def test_project_itself_is_not_installed(tmp_path):
    with pytest.raises(TaskError, match="among its own requirements"):
        install(environment("my_thing==2.0", distribution="My.Thing==1.5"), tmp_path)


def test_slow_compilation_is_an_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tool, "TIMEOUT_S", 0)
    with pytest.raises(TaskError, match="were not compiled within 0 s"):
        install(environment(distribution="thing==1.5"), tmp_path)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith("site-")]


def test_failed_build_names_its_error_and_not_what_follows(tmp_path, monkeypatch):
    monkeypatch.setattr(compiled, "_COMPILERS", ("bash",))  # the command below needs no other
    command = "echo 'calc.c:3: error: no such type'; echo 'make: leaving the directory'; exit 1"
    with pytest.raises(TaskError, match=r"cannot be compiled: calc\.c:3: error: no such type$"):
        compiled.build_in_place(tmp_path, command, own_interpreter(), None, "")


def test_concurrent_callers_share_one_build(index, tmp_path, monkeypatch):
    made = []
    run = tool.run_uv

    def counted(*arguments, **keywords):
        made.append(arguments)
        return run(*arguments, **keywords)

    monkeypatch.setattr(tool, "run_uv", counted)
    with ThreadPoolExecutor(4) as pool:
        sites = set(pool.map(lambda _: install(environment("six==2.0"), tmp_path / "cache"), range(4)))
    assert len(sites) == len(made) == 1


def test_builds_of_different_directories_do_not_block(index, tmp_path):
    cache = tmp_path / "cache"
    cache.mkdir()
    built = install(environment("six==2.0"), tmp_path / "other")
    with (cache / f".{built.name}.lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        assert install(environment("six==1.0"), cache) is not None


def _install_until_told(cache: Path, module: ModuleType, step: str, pipe) -> None:
    original = getattr(module, step)

    def halting(*arguments, **keywords):
        result = original(*arguments, **keywords)
        pipe.send("done")
        pipe.recv()
        return result

    setattr(module, step, halting)
    install(environment("six==2.0", distribution="thing==1.5"), cache)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("module", "step"), [(tool, "run_uv"), (subprocess, "run"), (tool, "make_readable")], ids=STEPS
)
def test_killed_build_leaves_nothing_and_blocks_no_one(index, tmp_path, module, step):
    here, there = multiprocessing.Pipe()
    cache = tmp_path / "cache"
    context = multiprocessing.get_context("fork")
    maker = context.Process(target=_install_until_told, args=(cache, module, step, there))
    maker.start()
    assert here.poll(60)
    os.kill(maker.pid, signal.SIGKILL)
    maker.join()
    assert not [p for p in cache.iterdir() if not p.name.startswith(".")]
    site = install(environment("six==2.0", distribution="thing==1.5"), cache)
    assert site is not None
    assert python(site, "import six, importlib.metadata as m; print(m.version('thing'))") == "1.5"
    assert sorted(p.name for p in cache.iterdir()) == sorted([f".{site.name}.lock", site.name])


SLOW_BUILD = """
import os
def build_wheel(directory, config_settings=None, metadata_directory=None):
    for path, mode in (({started!r}, "w"), ({go_on!r}, "r")):
        if os.path.exists(path):
            open(path, mode).close()
    raise RuntimeError("enough")
"""


def test_child_of_a_killed_build_is_waited_for(index, tmp_path):
    started, go_on = tmp_path / "started", tmp_path / "go-on"
    index.add_source("slow", "1.0", SLOW_BUILD.format(started=str(started), go_on=str(go_on)))
    for pipe in (started, go_on):
        os.mkfifo(pipe)
    cache = tmp_path / "cache"
    maker = multiprocessing.get_context("fork").Process(
        target=install, args=(environment("slow==1.0"), cache)
    )
    maker.start()
    started.open().close()  # the build runs, below uv
    started.unlink()
    os.kill(maker.pid, signal.SIGKILL)
    maker.join()
    with next(cache.glob(".*.lock")).open("w") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        go_on.open("w").close()
        go_on.unlink()
        fcntl.flock(lock, fcntl.LOCK_EX)
