"""Controls that admission finds, in real sandboxes."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from hone.curate.controls import find_controls
from hone.grading import Grader, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.controls import _PARAMETER
from hone.types import Checks, Commit, Control, Environment, Task

pytestmark = pytest.mark.sandbox

APP = "def add(a, b):\n    return a + b\n"
PLAIN = """import random

import pytest

from app import add


def test_add():
    assert add(1, 2) == 3


@pytest.mark.parametrize(("a", "total"), [(1, 2), (2, 3)])
def test_table(a, total):
    assert add(a, 1) == total


@pytest.mark.parametrize("a", [1, 2])
def test_one_of_them(a):
    if a == 2:
        assert add(a, 1) == 3


@pytest.mark.skip
def test_skipped():
    assert add(1, 2) == 3


@pytest.mark.xfail
def test_excused():
    assert add(1, 2) == 4


def test_either():
    assert random.random() >= 0 or add(1, 2)


def test_nothing():
    add(1, 2)
"""
DEPENDENT = """from app import add

known = {}


def test_first():
    assert add(1, 2) == 3
    known["sum"] = 3


def test_second():
    assert add(known["sum"], 0) == 3
"""
ALONE = """import sys

from app import add


def test_after_another_file():
    assert "tests.test_plain" in sys.modules
    assert add(1, 2) == 3
"""


def another(name: str) -> str:
    return _PARAMETER.format(name=name) + "\n    "


def names(controls: tuple[Control, ...]) -> dict[str, set[str]]:
    """Return test -> the texts that its controls put in."""
    found: dict[str, set[str]] = {}
    for control in controls:
        for test in control.tests:
            found.setdefault(test.split("::")[1], set()).add(control.new)
    return found


def find(
    scratch: Path, ids: dict[str, list[str]], data: dict[str, str] | None = None, **files: str
) -> tuple[Control, ...]:
    tree = {"app.py": APP, "tests/__init__.py": ""}
    task = Task(
        id="controlled",
        problem="add() adds.",
        environment=Environment(image="host", history=(Commit(message="Start", files=tree),)),
        checks=Checks(
            fail_to_pass=tuple(f"tests/{file}.py::{name}" for file, names in ids.items() for name in names),
            pass_to_pass=(),
            test_files={
                **{f"tests/{name}": text for name, text in (data or {}).items()},
                **{f"tests/{name}.py": text for name, text in files.items()},
            },
            gold_patch="",
            timeout_s=60,
        ),
        source="tests",
    )

    async def main() -> tuple[Control, ...]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=scratch / "workspaces")
            return await find_controls(dataclasses.replace(task), grader, repeats=3)

    return asyncio.run(main())


def test_tests_that_pass_get_controls_with_which_they_fail(tmp_path: Path) -> None:
    ids = [
        "test_add", "test_table[1-2]", "test_table[2-3]", "test_one_of_them[1]", "test_one_of_them[2]",
        "test_skipped", "test_excused", "test_either", "test_nothing",
    ]  # fmt: skip
    controls = find(tmp_path, {"test_plain": ids}, test_plain=PLAIN)
    assert names(controls) == {
        "test_add": {"4"},
        "test_table[1-2]": {another("total")},
        "test_table[2-3]": {another("total")},
        "test_one_of_them[2]": {"4"},
        "test_either": {"not (random.random() >= 0 or add(1, 2))"},
        "test_nothing": {"\n    assert not 1"},
    }


@pytest.mark.full
def test_files_whose_tests_depend_on_each_other_get_none(tmp_path: Path) -> None:
    ids = {"test_dependent": ["test_first", "test_second"], "test_plain": ["test_add"]}
    controls = find(tmp_path, ids, test_dependent=DEPENDENT, test_plain=PLAIN)
    assert set(names(controls)) == {"test_add"}


SHARED = """from pathlib import Path

from app import add
from tests.helpers import EXPECTED

SUM = 7


def test_golden():
    assert str(add(20, 21)) == (Path(__file__).parent / "data" / "sum.txt").read_text()


def test_helper():
    assert add(1, 1) == EXPECTED["sum"]


def test_own():
    assert add(3, 4) == SUM


def test_local():
    expected = 9
    assert add(4, 5) == expected
"""


def test_expectations_outside_the_function_get_controls(tmp_path: Path) -> None:
    ids = {"test_shared": ["test_golden", "test_helper", "test_own", "test_local"]}
    helpers = 'EXPECTED = {"sum": 2, "other": 5}\n'
    controls = find(tmp_path, ids, data={"data/sum.txt": "41"}, test_shared=SHARED, helpers=helpers)
    found = {control: control.tests[0].partition("::")[2] for control in controls}
    edits = {(control.file, control.old, control.new): test for control, test in found.items()}
    assert edits[("tests/data/sum.txt", "41", "42")] == "test_golden"
    assert edits[("tests/helpers.py", "2", "3")] == "test_helper"
    assert edits[("tests/test_shared.py", "7", "8")] == "test_own"
    assert edits[("tests/test_shared.py", "9", "10")] == "test_local"


def test_files_that_need_another_get_none(tmp_path: Path) -> None:
    ids = {"test_plain": ["test_add"], "test_z": ["test_after_another_file"]}
    controls = find(tmp_path, ids, test_plain=PLAIN, test_z=ALONE)
    assert set(names(controls)) == {"test_add"}
