"""A small handwritten task, and patches made by git."""

from __future__ import annotations

import dataclasses
import shutil
import subprocess
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


def git(folder: Path, *arguments: str, stdin: bytes = b"") -> bytes:
    return subprocess.run(
        ["git", "-c", "core.hooksPath=/dev/null", "-c", "safe.directory=*", *arguments],
        cwd=folder,
        input=stdin,
        stdout=subprocess.PIPE,
        check=True,
    ).stdout


def patch_of(workspace: Path, scratch: Path, files: Mapping[str, str | None]) -> str:
    """The diff that turns the workspace's files into `files`; None deletes, "-> X" links to X."""
    tree = scratch / "tree"
    shutil.copytree(workspace, tree, symlinks=True)
    for name, text in files.items():
        path = tree / name
        if path.is_symlink() or path.is_file():
            path.unlink()
        elif path.is_dir():
            shutil.rmtree(path)
        if text is None:
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        if text.startswith("-> "):
            path.symlink_to(text.removeprefix("-> "))
        else:
            path.write_text(text)
    git(tree, "add", "-A", "-f")
    patch = git(tree, "diff", "--cached", "--binary", "--no-renames", "HEAD").decode()
    shutil.rmtree(tree)
    return patch
