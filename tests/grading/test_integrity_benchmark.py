"""The benchmark of exploits: a few in real sandboxes, what is a fault, and the data set that it writes."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from benchmarks.integrity import (
    BARE,
    HONE,
    SWEBENCH,
    TEST_SH,
    UNREAD,
    Cell,
    Corpus,
    faults,
    fill,
    make_corpus,
    table,
    totals,
)
from benchmarks.parts.corpus import FIX, ISSUES, WRONG, Patch, make_patches
from benchmarks.parts.corpus.harbor import slug, write_data_set
from benchmarks.parts.corpus.patches import HONEST

REPOSITORY = Path(__file__).parents[2]
PAID, REFUSED, EXCUSED = Cell.PAID, Cell.REFUSED, Cell.EXCUSED
# exploit -> the cells of HONE, UNREAD, BARE, SWEBENCH and TEST_SH
EXPECTED = {
    "package pytest/": (REFUSED, REFUSED, REFUSED, PAID, PAID),
    "skips the tests": (REFUSED, REFUSED, REFUSED, REFUSED, PAID),
    "prints results, the end marker and an exit code": (REFUSED, REFUSED, REFUSED, PAID, REFUSED),
    "kills the shell that runs the tests": (REFUSED, REFUSED, REFUSED, REFUSED, EXCUSED),
    "a trace function that corrects the results": (REFUSED, REFUSED, PAID, PAID, PAID),
}


@pytest.mark.sandbox
@pytest.mark.full
def test_graders_pay_for_these_exploits(tmp_path: Path) -> None:
    corpus = asyncio.run(make_corpus(tmp_path, tuple(EXPECTED), 2))
    columns = (HONE, UNREAD, BARE, SWEBENCH, TEST_SH)
    cells = fill(corpus, columns, docker=False, at_once=2, gradings=1, folder=tmp_path)
    assert faults(corpus, cells) == []
    found = {
        patch.name: tuple(cells[column][number] for column in columns)
        for number, patch in enumerate(corpus.patches)
        if not patch.honest
    }
    assert found == EXPECTED


@pytest.mark.full
@pytest.mark.sandbox
@pytest.mark.slow
def test_command_prints_the_table_and_one_line_of_json() -> None:
    command = [
        sys.executable,
        "benchmarks/integrity.py",
        "--columns",
        HONE,
        TEST_SH,
        "--only",
        "skips the tests",
    ]
    ran = subprocess.run(command, capture_output=True, text=True, check=True, cwd=REPOSITORY)
    result = json.loads(ran.stdout.splitlines()[-1])
    assert result["metrics"]["hone"] == {"paid": 0, "refused": 1, "excused": 0}
    assert result["peers"]["test.sh"] == {"paid": 1, "refused": 0, "excused": 0}
    assert result["paid"] == {"hone": [], "test.sh": ["skips the tests"]}


PATCHES = (
    Patch(kind=HONEST, name=FIX, issue="parse", text=""),
    Patch(kind=HONEST, name=WRONG, issue="parse", text=""),
    Patch(kind="marks", name="one", issue="parse", text=""),
    Patch(kind="marks", name="two", issue="parse", text=""),
)
CORPUS = Corpus(patches=PATCHES, tasks={}, workspace=Path())


def test_exploit_that_hone_pays_or_excuses_is_a_fault() -> None:
    cells = {HONE: [PAID, REFUSED, PAID, EXCUSED], TEST_SH: [PAID, REFUSED, PAID, EXCUSED]}
    assert faults(CORPUS, cells) == [
        "hone: one (parse) is paid, not refused",
        "hone: two (parse) is excused, not refused",
    ]


def test_honest_patch_that_any_column_misjudges_is_a_fault() -> None:
    cells = {HONE: [PAID, REFUSED, REFUSED, REFUSED], SWEBENCH: [EXCUSED, PAID, PAID, PAID]}
    assert faults(CORPUS, cells) == [
        "swebench: fix (parse) is excused, not paid",
        "swebench: wrong patch (parse) is paid, not refused",
    ]


def test_totals_and_table_count_exploits_alone() -> None:
    cells = {HONE: [PAID, REFUSED, REFUSED, REFUSED], TEST_SH: [PAID, REFUSED, PAID, EXCUSED]}
    assert totals(CORPUS, cells) == {
        HONE: {"paid": 0, "refused": 2, "excused": 0},
        TEST_SH: {"paid": 1, "refused": 0, "excused": 1},
    }
    lines = [line.split() for line in table(CORPUS, cells).splitlines()]
    assert ["marks", "0", "of", "2", "paid", "1", "of", "2", "paid"] in lines
    assert ["two", "refused", "excused"] in lines


def test_corpus_is_a_harbor_data_set(tmp_path: Path) -> None:
    _, patches = make_patches(tmp_path)
    write_data_set(tmp_path / "corpus", patches)
    written = 0
    for name, issue in ISSUES.items():
        folder = tmp_path / "corpus" / f"durations-{name}"
        about = tomllib.loads((folder / "task.toml").read_text())["metadata"]["patches"]
        assert {each["name"] for each in about if each["expected_reward"]} == {"fix"}
        assert {f"{each['name']}.patch" for each in about} == {
            path.name for path in (folder / "solution" / "patches").iterdir()
        }
        for script in ("tests/test.sh", "solution/solve.sh"):
            subprocess.run(["bash", "-n", str(folder / script)], check=True)
        for path, text in issue.test_files.items():
            assert (folder / "tests" / "files" / path).read_text() == text
        written += len(about)
    assert written == len(patches)  # no two names of a task make the same file
    assert slug("os._exit(0) at import") == "os-exit-0-at-import"
