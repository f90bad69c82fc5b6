"""unittest in the test process: each copy that is imported is watched, and the runner imports none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from hone.grading import run
from hone.tasks.workspace import prepare
from hone.types import Verdict
from tests.grading.example import patch_of
from tests.grading.local import graded, local_task, read_no_patch
from tests.interpreters import shared_environment

IN_SANDBOX = Path(run.__file__).parent / "in_sandbox"
COPIES = """
import sys
sys.path.insert(0, {folder!r})
import hone_trusted
from hone_copies import Copies

def unload():
    for name in [name for name in sys.modules if name.partition(".")[0] == "unittest"]:
        del sys.modules[name]

print("unittest" in sys.modules)
compared = []
copies = Copies(lambda a, b: compared.append((a, b)))
copies.install()
import unittest
unittest.TestCase().assertEqual(1, 1)
copies.keep()
unload()
import unittest
unittest.TestCase().assertEqual(2, 2)
print(compared, [each.changed() for each in copies.snapshots() if each.changed()])
unittest.TestCase.assertTrue = None
print([each.changed() for each in copies.snapshots() if each.changed()])
unload()
print([each.changed() for each in copies.snapshots() if each.changed()])
"""

# A session of the first test leaves an attribute in unittest's class, as pytest 6 and 7 do themselves.
SESSIONS = '''
import pytest


def test_first(pytester):
    pytester.makepyfile("""
        import unittest
        unittest.TestCase.left = 1
        def test_inner():
            pass
    """)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_second(pytester):
    pytester.makepyfile("""
        import unittest
        def test_inner():
            assert not hasattr(unittest.TestCase, "left")
    """)
    pytester.runpytest_inprocess().assert_outcomes(passed=1)


def test_add():
    import unittest

    from stats import add

    unittest.TestCase().assertEqual(add(1, 1), 2)
'''
LIAR = "import unittest\n\nunittest.TestCase.assertEqual = lambda *values: None\n"


def test_runner_imports_no_unittest_and_watches_every_copy() -> None:
    command = [sys.executable, "-I", "-c", COPIES.format(folder=str(IN_SANDBOX))]
    found = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    assert found == ["False", "[(1, 1), (2, 2)] []", "['unittest.case.TestCase.assertTrue']", "[]"]


@pytest.mark.full
@pytest.mark.sandbox
def test_sessions_in_one_process_share_no_unittest(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read_no_patch(monkeypatch)
    buggy = "def add(a, b):\n    return a - b\n"
    task = local_task(
        tmp_path,
        {"stats.py": buggy, "conftest.py": 'pytest_plugins = "pytester"\n', "tests/test_stats.py": SESSIONS},
        fail_to_pass=("tests/test_stats.py::test_add",),
        pass_to_pass=("tests/test_stats.py::test_first", "tests/test_stats.py::test_second"),
        gold_patch="",
    )
    base = prepare(task, tmp_path / "workspaces")
    fixed = buggy.replace("a - b", "a + b")
    patches = {
        "gold": patch_of(base, tmp_path, {"stats.py": fixed}),
        "liar": patch_of(base, tmp_path, {"stats.py": LIAR + buggy}),
    }
    venv = shared_environment("3.9", "pytest==7.1.3")
    found = {
        name: (verdict.resolved, verdict.tampered) if isinstance(verdict, Verdict) else verdict
        for name, verdict in graded(task, {"empty": "", **patches}, base.parent, venv).items()
    }
    assert found == {
        "empty": (False, None),
        "gold": (True, None),
        "liar": (False, "the code under test replaced unittest.case.TestCase.assertEqual"),
    }
