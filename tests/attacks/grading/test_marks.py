"""Attacks by marks, which turn a failure into `xfailed` or `skipped`."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from hone.types import Checks, Commit, Environment, Task
from tests.attacks.grading.attack import BUGGY, FIXED, LIMIT_S, Attack, check_attacks, some_or_all

TESTS = """import unittest

from stats import *
from stats import Base, add, double, keep, number
from tests.helpers import LIMIT, same


def test_add():
    assert add(1, 2) == 3


@keep
def test_kept():
    assert add(2, 2) == 4


class TestBased(Base):
    def test_based(self):
        assert add(3, 2) == 5


class Case(unittest.TestCase):
    def test_case(self):
        self.assertEqual(add(7, 2), 9)


def test_double():
    assert double(3) == 6


def test_number(number):
    assert number == 2


class Doubled(unittest.TestCase):
    def test_doubled(self):
        self.assertEqual(double(2), 4)
"""
# A test of the same file that is marked: then the text alone cannot tell which test may be.
KNOWN = """

import pytest


@pytest.mark.xfail
def test_known():
    assert add(1, 1) == 5


@pytest.mark.skip
def test_later():
    pass
"""
CONFTEST = """import pytest
from figures import THREE


@pytest.fixture
def expected():
    return THREE
"""
FIGURES = "THREE = 3\n"
HELPERS = "LIMIT = 2\n\n\ndef same(a, b):\n    assert a == b\n"
MORE = "from stats import add, double\n\n\ndef test_more():\n    assert double(0) == 0\n"
USED = """import pytest


class Base:
    pass


def keep(function):
    return function


@pytest.fixture
def number():
    return 2


"""
FAILING = ("test_add", "test_kept", "TestBased::test_based", "Case::test_case")
KEPT = ("test_double", "test_number", "Doubled::test_doubled")


def make_task(tests: str, failing: tuple[str, ...], kept: tuple[str, ...], **checks: object) -> Task:
    """Return a task with `tests` in tests/test_hidden.py, and one more file that runs after it."""
    files = {
        "stats.py": USED + BUGGY,
        "figures.py": FIGURES,
        "tests/__init__.py": "",
        "tests/conftest.py": CONFTEST,
        "tests/helpers.py": HELPERS,
        "tests/data/sum.txt": "3",
    }
    named = Checks(
        fail_to_pass=tuple(f"tests/test_hidden.py::{name}" for name in failing),
        pass_to_pass=(*(f"tests/test_hidden.py::{name}" for name in kept), "tests/test_more.py::test_more"),
        test_files={"tests/test_hidden.py": tests, "tests/test_more.py": MORE},
        gold_patch="",
        timeout_s=LIMIT_S,
    )
    return Task(
        id="marked",
        problem="add(1, 2) gives -1, not 3.",
        environment=Environment(image="host", history=(Commit(message="Tests", files=files),)),
        checks=dataclasses.replace(named, **checks),
        source="tests",
    )


def fails(code: str, *failing: str, tests: str = TESTS, **checks: object) -> Attack:
    """Return an attack that leaves the bug in place, and runs `code` when stats.py is imported."""
    task = make_task(tests, failing, (), **checks)
    return Attack(files={"stats.py": f"{USED}{code}\n\n{BUGGY}"}, task=task)


def breaks(code: str, *kept: str, tests: str = TESTS) -> Attack:
    """Return an attack that fixes the bug and breaks what worked."""
    broken = FIXED.replace("return a * 2", "return 0")
    task = make_task(tests, ("test_add",), kept)
    return Attack(files={"stats.py": f"{USED}{broken}\n\n{code}\n"}, task=task)


def called(code: str, *failing: str, tests: str = TESTS) -> Attack:
    """Return an attack in which add() runs `code` instead of returning the right answer."""
    text = BUGGY.replace("return a - b", code)
    return Attack(files={"stats.py": USED + text}, task=make_task(tests, failing, ()))


IN_TESTS = """import sys, pytest
frame = sys._getframe()
while frame and 'test_hidden' not in str(frame.f_globals.get('__name__')):
    frame = frame.f_back
names = frame.f_globals if frame else {}
"""
IN_CONFTEST = IN_TESTS.replace("test_hidden", "conftest")
# The second test file imports the code under test when the functions of the first one exist.
LATE = """import sys, types, pytest
class Module(types.ModuleType):
    def __getattribute__(self, name):
        hidden = sys.modules.get('tests.test_hidden')
        if name == 'add' and hasattr(hidden, 'Case') and not hasattr(self, 'done'):
            self.done = True
            act(hidden)
        return types.ModuleType.__getattribute__(self, name)
sys.modules[__name__].__class__ = Module
def act(hidden):
"""
# pytest asks the classes of a test module for attributes before it has collected those that follow.
COLLECTED = """import sys, pytest
class Meta(type):
    def __getattribute__(cls, name):
        hidden = sys.modules.get('tests.test_hidden')
        if hasattr(hidden, 'Doubled'):
            act(hidden)
        return type.__getattribute__(cls, name)
class Base(metaclass=Meta):
    pass
def act(hidden):
"""
ITEM = """import gc, pytest
    items = (each for each in gc.get_objects() if isinstance(each, pytest.Function))
    item = next(each for each in items if each.name == {name!r})
"""
XFAIL = "pytest.mark.xfail(reason='later')"
ATTACKS: dict[str, Attack] = {
    "puts a mark into the test module": fails(f"{IN_TESTS}names['pytestmark'] = {XFAIL}", *FAILING),
    "exports a mark": fails(f"import pytest\npytestmark = {XFAIL}", *FAILING),
    "exports a mark to a file with marks": fails(
        f"import pytest\npytestmark = {XFAIL}", *FAILING, tests=TESTS + KNOWN
    ),
    "gives the test module a __getattr__": fails(
        f"""{IN_TESTS}
def find(name):
    if name == 'pytestmark':
        return {XFAIL}
    raise AttributeError(name)
names['__getattr__'] = find""",
        *FAILING,
        tests=TESTS + KNOWN,
    ),
    "changes the class of the test module": fails(
        f"""import sys, types, pytest
class Module(types.ModuleType):
    pytestmark = {XFAIL}
sys.modules['tests.test_hidden'].__class__ = Module""",
        *FAILING,
        tests=TESTS + KNOWN,
    ),
    "marks a function while it is collected": breaks(
        f"{COLLECTED}    hidden.test_double.pytestmark = [pytest.mark.skip.mark]",
        "test_double",
        tests=TESTS + KNOWN,
    ),
    "marks a class while it is collected": fails(
        f"{COLLECTED}    hidden.Case.pytestmark = [{XFAIL}.mark]", "Case::test_case", tests=TESTS + KNOWN
    ),
    "marks the collected module": fails(
        f"""{LATE}    import gc
    for found in gc.get_objects():
        if isinstance(found, pytest.Module) and found.name.endswith('test_hidden.py'):
            found.add_marker({XFAIL})""",
        *FAILING,
        tests=TESTS + KNOWN,
    ),
    "marks the running test": called(
        f"{ITEM.format(name='test_add')}    item.add_marker({XFAIL})\n    return a - b", "test_add"
    ),
    "marks the running test of a file with marks": called(
        f"{ITEM.format(name='test_add')}    item.add_marker({XFAIL})\n    return a - b",
        "test_add",
        tests=TESTS + KNOWN,
    ),
    "changes the keywords of the report": called(
        f"{ITEM.format(name='test_add')}    item.keywords['xfail'] = True\n    pytest.xfail('later')",
        "test_add",
        tests=TESTS + KNOWN,
    ),
    "raises what xfail raises from a test's file": called(
        "exec(compile(\"import pytest; pytest.xfail('later')\", '/testbed/tests/test_hidden.py', 'exec'))",
        "test_add",
    ),
    "marks in its decorator": fails(
        f"""import pytest
def keep(function):
    return {XFAIL}(function)""",
        "test_kept",
    ),
    "marks in its decorator a file with marks": fails(
        f"""import pytest
def keep(function):
    return {XFAIL}(function)""",
        "test_kept",
        tests=TESTS + KNOWN,
        excused=("tests/test_hidden.py::test_known",),
    ),
    "marks its base class": fails(f"import pytest\nBase.pytestmark = {XFAIL}", "TestBased::test_based"),
    "expects a failure of unittest": fails(
        f"{LATE}    hidden.Case.test_case.__unittest_expecting_failure__ = True", "Case::test_case"
    ),
    "has a hook for collected tests": Attack(
        files={
            "figures.py": f"""{FIGURES}{IN_CONFTEST}
def mark(items):
    for item in items:
        item.add_marker({XFAIL})
names['pytest_collection_modifyitems'] = mark"""
        },
        task=make_task(TESTS + KNOWN, FAILING, ()),
    ),
    "skips where it is called": breaks(
        """import pytest
def double(a):
    raise pytest.skip.Exception('later', _use_item_location=True)""",
        "test_double",
        "Doubled::test_doubled",
    ),
    "skips in its fixture": breaks(
        """import pytest
@pytest.fixture
def number():
    pytest.skip('later')""",
        "test_number",
        tests=TESTS + KNOWN,
    ),
    "skips a class of unittest": breaks(
        f"""{LATE}    hidden.Doubled.__unittest_skip__ = True
    hidden.Doubled.__unittest_skip_why__ = 'later'""",
        "Doubled::test_doubled",
        tests=TESTS + KNOWN,
    ),
    "raises SkipTest": breaks(
        "import unittest\ndef double(a):\n    if a:\n        raise unittest.SkipTest('later')\n    return a",
        "Doubled::test_doubled",
        tests=TESTS + KNOWN,
    ),
    "puts a mark into the test module from its decorator": fails(
        f"""import sys, pytest
def keep(function):
    sys._getframe(1).f_globals['pytestmark'] = {XFAIL}
    return function""",
        *FAILING,
        tests=TESTS + KNOWN,
    ),
    "skips in a setup of the module": breaks(
        f"{IN_TESTS}names['setup_function'] = lambda f: f.__name__ == 'test_add' or pytest.skip('later')",
        "test_double",
        tests=TESTS + KNOWN,
    ),
}
# A test that fails is no evidence: an honest patch can be wrong, too.
FAILED = {
    "marks the collected module",
    "marks the running test",
    "marks the running test of a file with marks",
    "changes the keywords of the report",
    "raises what xfail raises from a test's file",
    "marks in its decorator",
    "marks in its decorator a file with marks",
    "marks its base class",
    "skips where it is called",
    "skips in its fixture",
    "raises SkipTest",
}


# As another attack, only in a file with marks, on a class or from a decorator.
SIMILAR = {
    "exports a mark to a file with marks",
    "marks the running test of a file with marks",
    "marks in its decorator a file with marks",
    "marks a class while it is collected",
    "puts a mark into the test module from its decorator",
}


@some_or_all(set(ATTACKS) - SIMILAR, set(ATTACKS))
def test_no_attack_by_marks_is_resolved(names: set[str], tmp_path: Path) -> None:
    attacks = {name: attack for name, attack in ATTACKS.items() if name in names}
    check_attacks(attacks, tmp_path, caught=names - FAILED)
