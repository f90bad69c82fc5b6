"""Every block of every page that a laptop can run, in the order of the pages, in a scratch directory.

The directory looks like a checkout after `make install`, and after `make quickstart` for pages that look at
its run. A page that reads files of its reader (tasks, predictions, a project) finds them there: `INPUTS`.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.docs.blocks import PAGES, ROOT, RUNNABLE, Block, blocks
from tests.docs.inputs import INPUTS
from tests.e2e.small_run import SMALL

pytestmark = [pytest.mark.full, pytest.mark.e2e, pytest.mark.timeout(3600), pytest.mark.xdist_group("pages")]

TIMEOUT_S = 1800.0
ONE_PROGRAM = ("33-python.md",)  # of its Python blocks, which tests/front_door/test_page.py runs
FOLDERS = ("recipes", "benchmarks", "examples", "scripts", "hone", "tests", "docs")
FILES = ("pyproject.toml", "constraints.txt", "Makefile", "mkdocs.yml", "README.md", "LICENSE")
# `make quickstart` with the numbers of a small run.
QUICKSTART = shlex.join(
    [".venv/bin/hone", "quickstart", "recipes/quickstart.toml"]
    + [word for key, value in SMALL.items() for word in ("--set", f"{key}={value}")]
)
SKIPPED = ("make install", "make lint", "make fast", "make test", "make test-full")  # CI runs them as such
RUN_PAGES = [page for page in PAGES if any(b.language in RUNNABLE and not b.not_run for b in blocks(page))]


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory like a checkout after `make install`."""
    folder = tmp_path_factory.mktemp("checkout") / "hone"
    folder.mkdir()
    for name in (*FOLDERS, *FILES):
        (folder / name).symlink_to(ROOT / name)
    (folder / ".venv").symlink_to(sys.prefix)
    (folder / "runs").mkdir()
    return folder


@pytest.mark.parametrize("page", RUN_PAGES, ids=lambda page: page.stem)
def test_blocks_of_a_page_run_in_their_order(page: Path, checkout: Path) -> None:
    INPUTS.get(page.name, do_nothing)(checkout)
    if "runs/quickstart" in page.read_text() and not (checkout / "runs" / "quickstart").exists():
        run(checkout, QUICKSTART)
    for block in blocks(page):
        if block.file:
            (checkout / block.file).write_text(block.text)
        elif block.not_run:
            continue
        if block.language == "bash":
            run_bash(block, checkout)
        elif block.language == "python" and page.name not in ONE_PROGRAM:
            run_python(block, checkout)


def do_nothing(folder: Path) -> None:
    """The page needs no files of its reader."""


def run_bash(block: Block, folder: Path) -> None:
    for command in block.commands:
        if command in SKIPPED:
            continue
        run(folder, QUICKSTART if command.startswith("make quickstart") else small(command), block.where)


def small(command: str) -> str:
    """Return a command that trains on the quickstart's recipe with the numbers of a small run."""
    # so small a model resolves nothing
    command = command.replace("--outcome resolved ", "")
    command = command.replace("export runs/quickstart -o", "export runs/quickstart/demonstrations.jsonl -o")
    words = shlex.split(command)
    trains = {"quickstart", "train"} & set(words) and "--dry-run" not in words
    if not trains or not {"recipes/quickstart.toml", "my.toml"} & set(words):
        return command
    given = {word.partition("=")[0] for word in words}
    sets = [f"--set {shlex.quote(f'{key}={value}')}" for key, value in SMALL.items() if key not in given]
    return " ".join([command, *sets])


def run_python(block: Block, folder: Path) -> None:
    """Run a block in a module; one that awaits at its top level, as a notebook may, runs in an event loop."""
    (folder / "block.py").write_text(block.text)
    loop = """
        import ast, asyncio, inspect
        code = compile(open("block.py").read(), "block.py", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        result = eval(code, {"__name__": "__main__"})
        if inspect.iscoroutine(result):
            asyncio.run(result)
    """
    (folder / "run_block.py").write_text(textwrap.dedent(loop))
    run(folder, ".venv/bin/python run_block.py", block.where)


def run(folder: Path, command: str, where: str = "") -> None:
    path = f"{folder / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "PYTHONPATH": f".:{ROOT}"}
    done = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", command],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
    )
    assert done.returncode == 0, f"{where}\n{command}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
