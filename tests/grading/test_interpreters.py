"""The runner on every Python and pytest that the environments of tasks hold: the same verdicts."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from hone.tasks.workspace import prepare
from hone.types import TestStatus, Verdict
from tests.grading.example import patch_of
from tests.grading.local import graded, local_task
from tests.interpreters import shared_environment

pytestmark = pytest.mark.sandbox

BUGGY = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a + 2\n"
FIXED = BUGGY.replace("a - b", "a + b").replace("a + 2", "a * 2")
SUITE = """
import os
import pkgutil
import sys
import unittest

import pytest

from .helper import *
from .helper import three as number
from stats import add, double


@pytest.fixture
def one(shared):
    return shared - 1


def test_fixture(one, tmpdir, monkeypatch, capsys):
    monkeypatch.setattr("builtins.abs", lambda x: 7)
    assert abs(1) == 7
    print("seen")
    assert capsys.readouterr()[0] == "seen\\n"
    assert add(one, 2) == number == three == pytest.approx(3.0)


@pytest.mark.parametrize("a, b", [(1, 2), pytest.param("x", "y", id="x y::z")])
def test_parameters(a, b):
    assert add(a, b) == {(1, 2): 3, ("x", "y"): "xy"}[a, b]


class TestClass:
    def test_method(self):
        assert {"sum": [double(5)]} == {"sum": [10]}


class Case(unittest.TestCase):
    def setUp(self):
        self.value = 1

    def test_case(self):
        self.assertEqual(add(self.value, 1), 2)

    @unittest.expectedFailure
    def test_expected(self):
        self.assertEqual(add(1, 1), 5)

    @unittest.skip("always")
    def test_skipped_case(self):
        pass


@pytest.mark.xfail
def test_known():
    assert add(1, 1) == 5


@pytest.mark.skipif("True")
def test_skipped():
    pass


def test_imperative():
    pytest.skip("now")


def test_data():
    if sys.version_info >= (3, 9):
        import importlib.resources
        data = importlib.resources.files(__package__) / "data.txt"
        assert data.read_bytes() == b"one\\ntwo\\n"
    assert pkgutil.get_data(__package__, "data.txt") == b"one\\ntwo\\n"
    assert pkgutil.get_data(__package__, "helper.py").startswith(b"three")
    assert double(2) == 4


def test_broken_setup(missing_fixture):
    pass
"""
FILES = {
    "stats.py": BUGGY,
    "conftest.py": "import pytest\n\n@pytest.fixture(scope='session')\ndef shared():\n    return 2\n",
    "tests/__init__.py": "",
    "tests/helper.py": "three = 3\n",
    "tests/data.txt": "one\ntwo\n",
    "tests/test_all.py": "from stats import double\n\n\ndef test_double():\n    assert double(2) == 4\n",
    "pytest.ini": "[pytest]\naddopts = -ra\n",
}
ADDING = ("test_fixture", "test_parameters[1-2]", "test_parameters[x y::z]", "Case::test_case")
DOUBLING = ("TestClass::test_method",)
OTHERS = {
    "test_data": "passed",
    "Case::test_expected": "xfailed",
    "test_known": "xfailed",
    "Case::test_skipped_case": "skipped",
    "test_skipped": "skipped",
    "test_imperative": "skipped",
}
EXPECTED = {
    "gold": (ADDING + DOUBLING, True),
    "empty": ((), False),
    "half": (DOUBLING, False),
    "broken": ((), False),
    "test-editing": ((), False),
}
OLDEST = ("3.6", "pytest==3.3.1", "attrs==17.4.0")  # the oldest pin of SWE-bench Verified
ENVIRONMENTS = [
    ("3.6", "pytest==3.6.4"),
    ("3.6", "pytest==4.6.11"),
    ("3.6", "pytest==5.4.3"),
    ("3.6", "pytest==7.0.1"),
    ("3.7", "pytest==3.10.1"),
    ("3.7", "pytest==5.3.5"),
    ("3.7", "pytest==7.4.4"),
    ("3.8", "pytest==4.6.11"),
    ("3.8", "pytest==6.2.5"),
    ("3.8", "pytest==8.3.5"),
    ("3.9", "pytest==6.0.2"),
    ("3.9", "pytest==8.4.2"),
    ("3.10", "pytest==7.4.0"),
    ("3.10", "pytest==9.0.3"),
    ("3.11", "pytest==7.4.4"),
    ("3.11", "pytest==9.0.3"),
    ("3.12", "pytest==8.0.0"),
    ("3.13", "pytest==8.4.2"),
    ("3.14", "pytest==9.0.3"),
]


def check_verdicts(environment: Path, tmp_path: Path) -> None:
    named = [f"tests/test_all.py::{name}" for name in (*ADDING, *DOUBLING)]
    task = local_task(
        tmp_path,
        FILES,
        fail_to_pass=tuple(named),
        pass_to_pass=tuple(f"tests/test_all.py::{name}" for name in OTHERS),
        test_files={"tests/test_all.py": SUITE},
        gold_patch="",
    )
    base = prepare(task, tmp_path / "workspaces")

    def patch(text: str, **more: str) -> str:
        return patch_of(base, tmp_path, {"stats.py": text, **more})

    gold = patch(FIXED)
    patches = {
        "gold": gold,
        "empty": "",
        "half": patch(BUGGY.replace("a + 2", "a * 2")),
        "broken": patch(BUGGY + "def\n"),
        "test-editing": patch(
            BUGGY + "# no fix\n",
            **{"tests/test_all.py": "def test_fixture():\n    pass\n", "conftest.py": ""},
        ),
    }
    task = dataclasses.replace(task, checks=dataclasses.replace(task.checks, gold_patch=gold))
    verdicts = graded(task, patches, base.parent, environment)
    for name, (passing, resolved) in EXPECTED.items():
        verdict = verdicts[name]
        assert isinstance(verdict, Verdict), (name, verdict)
        passed = {test for test in named if verdict.tests[test] is TestStatus.PASSED}
        assert passed == {f"tests/test_all.py::{test}" for test in passing}, (name, verdict)
        assert (verdict.resolved, verdict.tampered) == (resolved, None), (name, verdict)
        if resolved:
            others = {name: verdict.tests[f"tests/test_all.py::{name}"] for name in OTHERS}
            assert others == OTHERS, verdict


def test_oldest_interpreter_gives_the_same_verdicts(tmp_path: Path) -> None:
    check_verdicts(shared_environment(*OLDEST), tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("python", ENVIRONMENTS, ids="-".join)
def test_every_interpreter_gives_the_same_verdicts(python: tuple[str, ...], tmp_path: Path) -> None:
    check_verdicts(shared_environment(*python), tmp_path)
