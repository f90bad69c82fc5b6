"""`hone start`, `hone tasks split`, `show` and `rate` as a user meets them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from hone.curate.journal import Journal
from hone.tasks.formats import save
from hone.tasks.sources import load_all
from tests.cli.in_process import Hone
from tests.curate.mining.projects import BASE, FIXED, NAMES, TESTS, Project
from tests.tasks.test_division import seeded

CASE = """\
import unittest

from shop.names import shorten, title


class NamesTest(unittest.TestCase):
    def test_title(self):
        self.assertEqual(title("red  apple"), "Red Apple")

    def test_shorten(self):
        self.assertEqual(shorten("a long name of a thing"), "a long ...")
        self.assertEqual(shorten("short"), "short")
"""


def refusal(hone: Hone, path: str | Path, out: Path) -> str:
    """What is printed instead of a start; nothing is made."""
    code, _, err = hone("start", path, "-o", out)
    assert code in (1, 2)
    assert not out.exists()
    return err.splitlines()[-1]


@pytest.mark.parametrize("address", ["https://example.com/me/it.git", "git@example.com:me/it.git"])
def test_address_is_refused(hone: Hone, tmp_path: Path, address: str) -> None:
    said = refusal(hone, address, tmp_path / "out")
    assert (
        said == f"hone: {address} is an address: run `git clone {address}` and pass the folder that it makes"
    )


def test_missing_folder_is_refused(hone: Hone, tmp_path: Path) -> None:
    said = refusal(hone, tmp_path / "nowhere", tmp_path / "out")
    assert said == f"hone: there is no folder {tmp_path}/nowhere: pass the folder of a git repository"


def test_folder_without_git_is_refused(hone: Hone, tmp_path: Path) -> None:
    (tmp_path / "plain").mkdir()
    said = refusal(hone, tmp_path / "plain", tmp_path / "out")
    assert "is not a git repository" in said
    assert "run `git init`, `git add --all` and `git commit` in it, or pass a clone" in said


def test_folder_inside_a_repository_names_the_repository(hone: Hone, tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    said = refusal(hone, project.folder / "tests", tmp_path / "out")
    assert f"is a folder of the repository {project.folder}: pass that" in said


def test_repository_without_commits_is_refused(hone: Hone, tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    project.git("checkout", "--quiet", "--orphan", "new")
    assert "has no commits: commit its files first" in refusal(hone, project.folder, tmp_path / "out")


def test_repository_without_tests_is_refused_and_told_of_changes(hone: Hone, tmp_path: Path) -> None:
    project = Project(tmp_path / "shop", {"shop.py": "x = 1\n", "checks.py": "def test_x():\n    pass\n"})
    project.write({"shop.py": "x = 2\n"})
    code, _, err = hone("start", project.folder, "-o", tmp_path / "out")
    assert (code, (tmp_path / "out").exists()) == (1, False)
    assert "has uncommitted changes in 1 files, such as shop.py. No task has them: commit them" in err
    assert "has no tests that Hone finds" in err
    assert "pass their folder or files with --tests" in err


def test_folder_of_another_run_is_refused(hone: Hone, tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    Journal(tmp_path / "out" / "start.jsonl", {"limit": 3}).put("minutes", 1.0)
    code, _, err = hone("start", project.folder, "-o", tmp_path / "out", "--limit", "4")
    assert code == 1
    assert "start.jsonl belongs to another run (" in err
    assert "limit: 4 here, 3 in start.jsonl" in err


def test_wrong_model_or_setting_is_refused_before_anything_else(hone: Hone, tmp_path: Path) -> None:
    project = Project(tmp_path / "shop")
    nowhere, out = tmp_path / "nowhere", tmp_path / "out"
    code, _, err = hone("start", project.folder, "-o", out, "--model", nowhere)
    assert (code, out.exists()) == (2, False)
    assert f"there is no model folder {nowhere}" in err
    code, _, err = hone("start", project.folder, "-o", out, "--set", "train.step=3")
    assert (code, out.exists()) == (2, False)
    assert "did you mean train.steps?" in err


def test_split_writes_sets_that_show_reads(hone: Hone, tmp_path: Path) -> None:
    save([seeded(number, f"m{number}.py", "f") for number in range(10)], tmp_path / "tasks.jsonl")
    code, out, _ = hone("tasks", "split", tmp_path / "tasks.jsonl", "-o", tmp_path / "sets", "--json")
    told = json.loads(out)
    assert (code, told["sets"], told["level"]) == (0, {"train": 8, "test": 2}, "file")
    (first, _) = load_all(told["files"]["test"])
    code, out, _ = hone("tasks", "show", told["files"]["test"], first.id)
    assert code == 0
    assert first.problem in out
    assert "1111111111" in out
    assert "1 to fix, 0 to keep" in out
    assert "+b" not in out
    assert f"+b{first.id[2:]}" in hone("tasks", "show", told["files"]["test"], "0", "--checks")[1]


@pytest.mark.parametrize("shares", [("--test", "0"), ("--test", "0.6", "--validation", "0.4")])
def test_split_without_a_training_or_test_set_is_refused(
    hone: Hone, tmp_path: Path, shares: tuple[str, ...]
) -> None:
    save([seeded(number, f"m{number}.py", "f") for number in range(10)], tmp_path / "tasks.jsonl")
    code, _, err = hone("tasks", "split", tmp_path / "tasks.jsonl", *shares)
    assert code == 2
    assert "leave no tasks to train or to test on" in err


def test_unknown_task_of_a_file_names_the_nearest(hone: Hone, tmp_path: Path) -> None:
    save([seeded(7, "m.py", "f")], tmp_path / "tasks.jsonl")
    code, _, err = hone("tasks", "show", tmp_path / "tasks.jsonl", "s-8")
    assert code == 2
    assert "did you mean s-7?" in err


def shop(folder: Path) -> Project:
    """A project with pytest and unittest tests, whose last commit is a fix."""
    files = {name: text for name, text in BASE.items() if name != "pyproject.toml"}
    project = Project(folder, {**files, "shop/names.py": NAMES, "checks/names_case.py": CASE})
    project.commit(
        "Fix the total: the first price is left out", {"shop/prices.py": FIXED, "tests/test_prices.py": TESTS}
    )
    return project


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.model
def test_start_goes_all_the_way_and_continues(
    hone: Hone, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    project, out = shop(tmp_path / "shop"), tmp_path / "out"
    command = ("start", project.folder, "-o", out, "--tests", "checks", "--limit", "6", "--repeat", "1")
    code, printed, err = hone(*command, "--json")
    assert code == 0, err
    told = json.loads(printed)
    assert "1 test files of pytest and 1 of unittest" in err
    assert told["tasks"]["mined"] == 1
    assert told["tasks"]["seeded"] >= 3
    assert told["sets"]["train"] + told["sets"]["test"] == sum(told["tasks"].values())
    assert told["baseline"]["n"] == told["sets"]["test"]
    assert any((out / "run" / "checkpoints").iterdir())
    # so small a model may learn nothing from these tasks
    assert told["checkpoint"] or "nothing was learnt" in told["not_trained"]
    assert told["next"].startswith(f"hone start {project.folder} -o {out}-8b --model ")
    files = {path.name for path in out.iterdir()}
    assert {"tasks.jsonl", "train.jsonl", "test.jsonl", "recipe.toml", "baseline", "run"} <= files
    assert str(tmp_path) not in (out / "tasks.jsonl").read_text()

    again = json.loads(hone(*command, "--json")[1])
    assert {**again, "minutes": 0} == {**told, "minutes": 0}

    shutil.move(out, tmp_path / "moved")
    shutil.rmtree(project.folder)
    arguments = ("--agent", "oracle", "--tasks", tmp_path / "moved" / "test.jsonl", "-o", tmp_path / "eval")
    code, printed, err = hone("eval", *arguments, "--json")
    assert code == 0, err
    assert json.loads(printed)["resolve_rate"] == 1.0
    rated = tmp_path / "rated.jsonl"
    code, printed, err = hone(
        "tasks", "rate", tmp_path / "moved" / "test.jsonl", "--agent", "oracle", "--samples", "2", "-o", rated
    )
    assert code == 0, err
    assert all(task.metadata["rate"]["resolved"] == 2 for task in load_all(rated))
    assert "of 2 rollouts of oracle" in hone("tasks", "show", rated, "0")[1]
