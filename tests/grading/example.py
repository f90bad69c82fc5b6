"""A small handwritten task, and patches made by git."""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from hone.types import Checks, Commit, Environment, Task

BUGGY = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a * 2\n"
FIXED = BUGGY.replace("a - b", "a + b")
VISIBLE = "from stats import double\n\n\ndef test_double():\n    assert double(4) == 8\n"
HIDDEN = """from stats import add, double


def test_add():
    assert add(1, 2) == 3


def test_add_lists():
    assert [add(1, 2), add(0, 0)] == [3, 0]


def test_add_nothing():
    assert add(1, 0) == 1


def test_double_again():
    assert double(3) == 6
"""
MORE_HIDDEN = "from stats import add\n\n\ndef test_add_more():\n    assert add(5, 5) == 10\n"


def make_task(**checks: object) -> Task:
    """`add` in stats.py subtracts; three hidden tests fail for it, three more pass."""
    task = Task(
        id="example",
        problem="add(1, 2) gives -1, not 3.",
        environment=Environment(
            image="host",
            history=(
                Commit(message="Start", files={"stats.py": FIXED, "tests/__init__.py": ""}),
                Commit(
                    message="Tests",
                    files={"stats.py": BUGGY, "tests/test_visible.py": VISIBLE, "data.txt": "one\ntwo\n"},
                ),
            ),
        ),
        checks=Checks(
            fail_to_pass=(
                "tests/test_hidden.py::test_add",
                "tests/test_hidden.py::test_add_lists",
                "tests/test_more.py::test_add_more",
            ),
            pass_to_pass=(
                "tests/test_hidden.py::test_add_nothing",
                "tests/test_hidden.py::test_double_again",
                "tests/test_visible.py::test_double",
            ),
            test_files={"tests/test_hidden.py": HIDDEN, "tests/test_more.py": MORE_HIDDEN},
            gold_patch="",
            timeout_s=120.0,
        ),
        source="tests",
    )
    return dataclasses.replace(task, checks=dataclasses.replace(task.checks, **checks))


def git(folder: Path, *arguments: str, **environment: str | Path) -> bytes:
    """Run git without hooks and line-end conversion; return its standard output."""
    values = ("core.hooksPath=/dev/null", "safe.directory=*", "core.autocrlf=false", "core.safecrlf=false")
    options = [word for value in values for word in ("-c", value)]
    command = ["git", *options, *arguments]
    return subprocess.run(
        command, cwd=folder, env={**os.environ, **environment}, stdout=subprocess.PIPE, check=True
    ).stdout


def write_tree(tree: Path, files: Mapping[str, str | bytes | None]) -> None:
    """Write files; None deletes one, "-> X" makes a link to X, "+x " or "#!" an executable file."""
    for name, content in files.items():
        path = tree / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        if content is None:
            continue
        for parent in path.parents:
            if parent.is_file():
                parent.unlink()
        path.parent.mkdir(parents=True, exist_ok=True)
        data = content.encode() if isinstance(content, str) else content
        if data.startswith(b"-> "):
            path.symlink_to(data.removeprefix(b"-> ").decode())
        else:
            path.write_bytes(data.removeprefix(b"+x "))
            path.chmod(0o755 if data.startswith((b"+x ", b"#!")) else 0o644)


def patch_of(base: Path, scratch: Path, files: Mapping[str, str | bytes | None], *options: str) -> str:
    """Return the diff that makes the changes `files` in the repository `base`; see `write_tree`."""
    with tempfile.TemporaryDirectory(dir=scratch) as folder:
        tree, index, objects = Path(folder, "tree"), Path(folder, "index"), Path(folder, "objects")
        shutil.copytree(base, tree, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        shutil.copy(base / ".git/index", index)
        objects.mkdir()
        there = {  # the repository stays as it is
            "GIT_DIR": base / ".git",
            "GIT_WORK_TREE": tree,
            "GIT_INDEX_FILE": index,
            "GIT_OBJECT_DIRECTORY": objects,
            "GIT_ALTERNATE_OBJECT_DIRECTORIES": base / ".git/objects",
        }
        before = git(tree, "write-tree", **there).decode().strip()
        write_tree(tree, files)
        git(tree, "add", "-A", "-f", **there)
        arguments = ("diff", "--cached", "--binary", *(options or ("--no-renames",)), before)
        return git(tree, *arguments, **there).decode()
