"""Python inside of rows: the tests that a file holds, and a solution as a patch."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from hone.tasks.errors import TaskError
from hone.tasks.formats import FORMATS
from hone.tasks.formats.pytest_ids import test_names as names_of
from tests.tasks.test_formats_rows import KODCODE


@pytest.mark.slow
def test_names_are_tests_that_pytest_collects(tmp_path: Path) -> None:
    source = """
import unittest
import pytest

@pytest.mark.parametrize("x", [1, 2])
def test_each(x): ...
async def test_waits(): ...
@pytest.fixture
def test_data(): ...
def helper(): ...
class TestGroup:
    def test_one(self): ...
    @property
    def test_two(self): ...
class TestMade:
    def __init__(self): ...
    def test_three(self): ...
class Odd(unittest.TestCase):
    def test_four(self): ...
class test_lower:
    def test_five(self): ...
def test_gone(): ...
test_gone_too = 1
def test_again(): ...
def test_again(): ...
"""
    assert names_of(source) == [
        "test_each",
        "test_waits",
        "test_gone",
        "test_again",
        "TestGroup::test_one",
        "Odd::test_four",
    ]
    (tmp_path / "test.py").write_text(source)
    command = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "test.py"]
    said = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True).stdout
    collected = {line.partition("[")[0] for line in said.splitlines() if line.startswith("test.py::")}
    assert collected == {f"test.py::{name}" for name in names_of(source)}


@pytest.mark.parametrize(
    "solution", ["def f():\n    return '\x0c\r \u2028'", "++x\n--x\n\n y", "a\r\nb\r\n", ""]
)
def test_solution_survives_its_patch(tmp_path: Path, solution: str) -> None:
    if not solution:
        with pytest.raises(TaskError, match="`solution` is missing"):
            FORMATS["kodcode"].read({**KODCODE, "solution": solution})
        return
    task = FORMATS["kodcode"].read({**KODCODE, "solution": solution})
    row = FORMATS["kodcode"].write(dataclasses.replace(task, metadata={}))
    assert row["solution"] == solution.rstrip("\n") + "\n"
    start = task.environment.history[0].files["solution.py"] or ""
    (tmp_path / "solution.py").write_text(start)
    subprocess.run(["git", "apply", "-"], input=task.checks.gold_patch.encode(), cwd=tmp_path, check=True)
    assert (tmp_path / "solution.py").read_bytes().decode() == solution.rstrip("\n") + "\n"
