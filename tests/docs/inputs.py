"""The files that a page's reader has before its first command, by the name of the page."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.curate.mining.projects import BASE, FIXED, NAMES, TESTS

TESTS_OF_NAMES = """\
from shop.names import shorten, title


def test_title():
    assert title("red  apple") == "Red Apple"


def test_shorten():
    assert shorten("a long name of a thing") == "a long ..."
    assert shorten("short") == "short"
"""


def tasks(folder: Path) -> None:
    """Two generated tasks in `tasks.jsonl`, and a wrong patch of one as predictions in `preds.jsonl`."""
    hone(folder, "tasks", "generate", "recipes/quickstart.toml", "--out", "runs/some.jsonl")
    lines = (folder / "runs" / "some.jsonl").read_text().splitlines()[:2]
    (folder / "tasks.jsonl").write_text("".join(f"{line}\n" for line in lines))
    name = json.loads(lines[0])["id"]
    prediction = {"instance_id": name, "model_name_or_path": "me", "model_patch": ""}
    (folder / "preds.jsonl").write_text(json.dumps(prediction) + "\n")


def harbor_tasks(folder: Path) -> None:
    """Two Harbor tasks in `my-benchmark`."""
    tasks(folder)
    hone(folder, "tasks", "export", "tasks.jsonl", "--format", "harbor", "-o", "my-benchmark")
    (folder / "tasks.jsonl").unlink()


def project(folder: Path) -> None:
    """A project beside the checkout whose last commit fixes a bug and adds its test."""
    (folder / "tasks.jsonl").unlink(missing_ok=True)
    made = folder.parent / "my-project"
    if not made.exists():
        made.mkdir()
        git(made, "init", "--quiet", "--initial-branch=main")
        commit(made, "Begin", {**BASE, "shop/names.py": NAMES, "tests/test_names.py": TESTS_OF_NAMES})
        commit(made, "Count the first price, too", {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS})


def commit(repository: Path, message: str, files: Mapping[str, str]) -> None:
    for name, text in files.items():
        (repository / name).parent.mkdir(parents=True, exist_ok=True)
        (repository / name).write_text(text)
    git(repository, "add", "--all")
    git(repository, "commit", "--quiet", "--message", message)


def git(repository: Path, *arguments: str) -> None:
    who = ("-c", "user.name=me", "-c", "user.email=me")
    subprocess.run(["git", *who, *arguments], cwd=repository, check=True)


def hone(folder: Path, *arguments: str) -> None:
    subprocess.run([folder / ".venv" / "bin" / "hone", *arguments], cwd=folder, check=True)


INPUTS: dict[str, Callable[[Path], None]] = {
    "06-grading.md": tasks,
    "14-mining.md": project,
    "15-mutation.md": project,
    "27-harbor.md": harbor_tasks,
    "34-start.md": project,
    "train.md": project,
}
