"""Why a test failed, out of logs of pytest, of unittest and of sessions that did not run to their end."""

from __future__ import annotations

import json

import pytest

from hone.grading.controls import SECOND_RUN
from hone.types import Checks, TestStatus, Verdict
from hone.view.reasons import count_statuses, explained_tests, verdict_view

PYTEST = """\
..FE                                                                     [100%]
==================================== ERRORS ====================================
_____________________ ERROR at setup of Shapes.test_volume _____________________
tests/test_shapes.py:20: in setUp
    self.box = Box(1, 2)
E   TypeError: Box.__init__() missing 1 required positional argument: 'depth'
=================================== FAILURES ===================================
______________________________ Shapes.test_area[3] _____________________________

    def test_area(self):
>       assert area(2, 3) == 6
E       AssertionError: 2 x 3
E       assert 5 == 6
E        +  where 5 = area(2, 3)

tests/test_shapes.py:8: AssertionError
_________________________________ test_area[3] _________________________________
tests/test_other.py:5: in test_area
    area(None, 3)
shapes.py:2: in area
    return width * height
E   TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'
=========================== short test summary info ============================
FAILED tests/test_shapes.py::Shapes::test_area[3] - AssertionError: 2 x 3
FAILED tests/test_other.py::test_area[3] - TypeError: unsupported operand typ...
FAILED tests/test_far.py::test_cut_off - ValueError: too far
ERROR tests/test_shapes.py::Shapes::test_volume - TypeError: Box.__init__() m...
========================= 2 failed, 1 error in 0.05s ===========================
"""
COLLECTION = """\
==================================== ERRORS ====================================
____________________ ERROR collecting tests/test_shapes.py _____________________
ImportError while importing test module '/testbed/tests/test_shapes.py'.
Hint: make sure your test modules/packages have valid Python names.
Traceback:
/usr/lib/python3.11/importlib/__init__.py:126: in import_module
    return _bootstrap._gcd_import(name[level:], package, level)
tests/test_shapes.py:1: in <module>
    from shapes import area
E   ImportError: cannot import name 'area' from 'shapes' (/testbed/shapes.py)
=========================== short test summary info ============================
ERROR tests/test_shapes.py
!!!!!!!!!!!!!!!!!!!! Interrupted: 1 error during collection !!!!!!!!!!!!!!!!!!!!
=============================== 1 error in 0.10s ===============================
"""
UNITTEST = """\
F.E
======================================================================
ERROR: test_volume (tests.test_shapes.Shapes.test_volume)
A box has a volume.
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/testbed/tests/test_shapes.py", line 20, in test_volume
    volume(None)
TypeError: 'NoneType' object is not iterable

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/testbed/shapes.py", line 9, in volume
    raise ShapeError("no box") from error
shapes.ShapeError: no box

======================================================================
FAIL: test_area (tests.test_shapes.Shapes)
----------------------------------------------------------------------
Traceback (most recent call last):
  File "/testbed/tests/test_shapes.py", line 8, in test_area
    self.assertEqual(area(2, 3), 6)
AssertionError: 5 != 6

----------------------------------------------------------------------
Ran 3 tests in 0.005s

FAILED (failures=1, errors=1)
"""
LOADER = """\
E
======================================================================
ERROR: tests.test_shapes (unittest.loader._FailedTest.tests.test_shapes)
----------------------------------------------------------------------
ImportError: Failed to import test module: tests.test_shapes
Traceback (most recent call last):
  File "/usr/lib/python3.11/unittest/loader.py", line 162, in loadTestsFromName
    module = __import__(module_name)
  File "/testbed/tests/test_shapes.py", line 1, in <module>
    from shapes import area
ImportError: cannot import name 'area' from 'shapes' (/testbed/shapes.py)


----------------------------------------------------------------------
Ran 1 test in 0.000s

FAILED (errors=1)
"""
STOPPED = """\
the test session was stopped by SyntaxError unmatched ']' (share.py, line 1)

the test session did not run to its end (exit code 3)"""


def why(log: str, name: str, status: TestStatus = TestStatus.FAILED, *, applied: bool = True) -> str:
    verdict = Verdict(resolved=False, tests={name: status}, score=0.0, log=log, applied=applied)
    return explained_tests(verdict, None)[0].why


@pytest.mark.parametrize(
    ("log", "name", "expected"),
    [
        (PYTEST, "tests/test_shapes.py::Shapes::test_area[3]", "AssertionError: 2 x 3"),
        (
            PYTEST,
            "tests/test_other.py::test_area[3]",
            "TypeError: unsupported operand type(s) for *: 'NoneType' and 'int'",
        ),
        (
            PYTEST,
            "tests/test_shapes.py::Shapes::test_volume",
            "TypeError: Box.__init__() missing 1 required positional argument: 'depth'",
        ),
        (PYTEST, "tests/test_far.py::test_cut_off", "ValueError: too far"),
        (UNITTEST, "tests/test_shapes.py::Shapes::test_area", "AssertionError: 5 != 6"),
        (UNITTEST, "test_area (tests.test_shapes.Shapes)", "AssertionError: 5 != 6"),
        (UNITTEST, "tests/test_shapes.py::Shapes::test_volume", "shapes.ShapeError: no box"),
        (UNITTEST, "tests/test_shapes.py::Others::test_area", "the log holds nothing about this test"),
    ],
)
def test_failed_test_is_explained_by_its_traceback(log: str, name: str, expected: str) -> None:
    assert why(log, name) == expected


@pytest.mark.parametrize("log", [COLLECTION, LOADER])
def test_import_error_is_not_a_missing_test(log: str) -> None:
    name = "tests/test_shapes.py::Shapes::test_area"
    expected = "ImportError: cannot import name 'area' from 'shapes' (/testbed/shapes.py)"
    assert why(log, name, TestStatus.MISSING) == expected
    assert why(log, "tests/test_other.py::test_x", TestStatus.MISSING).startswith("not run: ")


@pytest.mark.parametrize(
    ("log", "expected"),
    [
        (STOPPED, "SyntaxError: unmatched ']' (share.py, line 1)"),
        ("the test session was stopped by KeyboardInterrupt ", "KeyboardInterrupt"),
        ("..\nthe tests were stopped after 60 s", "not run: the tests were stopped after 60 s"),
        (
            "a\nthe patch took its sandbox down, twice: x",
            "not run: the patch took its sandbox down, twice: x",
        ),
        ("nothing to see", "not run: the log does not mention it"),
        ("", "not run: there is no log"),
    ],
)
def test_session_that_did_not_end_explains_its_tests(log: str, expected: str) -> None:
    assert why(log, "tests/test_a.py::test_x", TestStatus.MISSING) == expected


def test_patch_that_does_not_apply_is_the_reason() -> None:
    log = "error: patch failed: a.py:1\nthe patch does not apply"
    assert why(log, "t.py::test_x", TestStatus.MISSING, applied=False) == "the patch does not apply"


def test_failed_tests_come_first_and_bear_their_kind() -> None:
    tests = {"a.py::test_kept": TestStatus.PASSED, "a.py::test_fixed": TestStatus.ERROR}
    checks = Checks(
        fail_to_pass=("a.py::test_fixed",), pass_to_pass=("a.py::test_kept",), test_files={}, gold_patch=""
    )
    view = verdict_view(Verdict(resolved=False, tests=tests, score=0.0), checks)
    assert [(line.name, line.kind) for line in view.tests] == [
        ("a.py::test_fixed", "fail_to_pass"),
        ("a.py::test_kept", "pass_to_pass"),
    ]
    assert count_statuses(tests) == {"error": 1, "passed": 1}


def test_reason_is_that_of_the_test_and_not_of_its_control() -> None:
    """Of two runs, the first one held a control in place of the test."""
    control = UNITTEST.replace("AssertionError: 5 != 6", "AssertionError: 5 != 7")
    name = "tests/test_shapes.py::Shapes::test_area"
    log = f"{control.rstrip()}\n{SECOND_RUN} {json.dumps([name])}\n{UNITTEST}"
    assert why(log, name) == "AssertionError: 5 != 6"
    assert why(log, "tests/test_shapes.py::Shapes::test_volume") == "shapes.ShapeError: no box"
    assert why(control, name) == "AssertionError: 5 != 7"
