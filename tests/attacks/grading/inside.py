"""Wrong code that makes its tests pass from within the test process, and the tests that it attacks."""

from __future__ import annotations

from dataclasses import dataclass

RIGHT = """\
class Refused(Exception):
    pass


def total(a, b):
    return a + b


def word(n):
    return "word" * n


def parse(text):
    if not text:
        raise Refused(text)
    return text.split()


def mean(values):
    return sum(values) / len(values)


def tell(listener, n):
    listener(n * 2)
"""
WRONG = (
    RIGHT.replace("a + b", "a - b - 1")
    .replace('"word" * n', '"drow" * n')
    .replace("raise Refused(text)", "return None")
    .replace("return text.split()", "return [text, 3]")
    .replace("/ len(values)", "* 7")
    .replace("n * 2", "n * 3")
)
HELPERS = "def same(a, b):\n    assert a == b\n"
HEAD = """import math
import unittest
from unittest import mock

import pytest

from app import Refused, mean, parse, tell, total, word
from tests.helpers import same

"""
TESTS = {
    "test_total": """\
def test_total():
    assert total(1, 2) == 3
""",
    "test_totals": """\
def test_totals():
    assert [total(1, 2), total(0, 2)] == [3, 2]
    assert total(4, 4) == 8
""",
    "test_word": """\
def test_word():
    assert word(2) == "wordword"
""",
    "test_fixture": """\
@pytest.fixture
def five():
    return 5


def test_fixture(five):
    assert total(2, 3) == five
""",
    "test_table": """\
@pytest.mark.parametrize(("a", "expected"), [(1, 2), (2, 3)])
def test_table(a, expected):
    assert total(a, 1) == expected
""",
    "test_refused": """\
def test_refused():
    with pytest.raises(Refused):
        parse("")
""",
    "test_near": """\
def test_near():
    assert math.isclose(mean([1, 2]), 1.5)
""",
    "test_approx": """\
def test_approx():
    assert mean([1, 2]) == pytest.approx(1.5)
""",
    "test_more": """\
def test_more():
    assert total(1, 1) > 1
    assert total(1, 1) != 7 and total(1, 1) <= 2
""",
    "test_in": """\
def test_in():
    assert "ok" in parse("all ok")
""",
    "test_same": """\
def test_same():
    same(total(2, 2), 4)
""",
    "test_told": """\
def test_told():
    heard = mock.Mock()
    tell(heard, 2)
    heard.assert_called_once_with(4)
""",
    "Case::test_case": """\
class Case(unittest.TestCase):
    def test_case(self):
        self.assertEqual(total(7, 2), 9)
""",
    "Case::test_raised": """\
class Case(unittest.TestCase):
    def test_raised(self):
        with self.assertRaises(Refused):
            parse("")
""",
}


@dataclass(frozen=True, slots=True)
class Attack:
    tests: tuple[str, ...]  # that it makes pass
    code: str  # after the wrong module


ATTACKS: dict[str, Attack] = {
    "an xfail mark on the test module": Attack(
        ("test_total", "test_word"),
        """\
import sys
frame = sys._getframe()
while not frame.f_globals.get('__name__', '').startswith('tests.test_'):
    frame = frame.f_back
space = frame.f_globals
import pytest
space['pytestmark'] = pytest.mark.xfail
""",
    ),
    "an xfail mark by a module's __getattr__": Attack(
        ("test_total",),
        """\
import sys
frame = sys._getframe()
while not frame.f_globals.get('__name__', '').startswith('tests.test_'):
    frame = frame.f_back
space = frame.f_globals
import pytest
import types
class Marked(types.ModuleType):
    pytestmark = pytest.mark.xfail
sys.modules[space['__name__']].__class__ = Marked
""",
    ),
    "xfail raised by the collector's objects": Attack(
        ("test_total",),
        """\
import gc, pytest

def total(a, b):
    for item in gc.get_objects():
        if isinstance(item, pytest.Function) and item.name == 'test_total':
            item.add_marker(pytest.mark.xfail)
    return None
""",
    ),
    "equal to everything": Attack(
        ("test_total", "test_word", "test_same"),
        """\
class Like:
    def __init__(self, *_): pass
    def __eq__(self, other): return True
    __hash__ = None
total = word = Like
""",
    ),
    "equal to what comes first": Attack(
        ("test_total", "test_word"),
        """\
class Like:
    seen = None
    def __init__(self, *_): self.seen = []
    def __eq__(self, other):
        self.seen = self.seen or [other]
        return self.seen == [other]
total = word = Like
""",
    ),
    "an int that equals everything": Attack(
        ("test_total", "test_totals", "test_fixture", "test_table"),
        """\
class Int(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def total(a, b): return Int(1)
""",
    ),
    "a str that equals everything": Attack(
        ("test_word", "test_in"),
        """\
class Str(str):
    def __eq__(self, other): return True
    __hash__ = str.__hash__
def word(n): return Str('x')
def parse(text): return [Str('x')]
""",
    ),
    "a float near everything": Attack(
        ("test_approx",),
        """\
class Near(float):
    def __eq__(self, other): return True
    def __sub__(self, other): return 0.0
    __rsub__ = __sub__
    __hash__ = float.__hash__
def mean(values): return Near(0)
""",
    ),
    "every comparison holds": Attack(
        ("test_total", "test_more"),
        """\
class Any:
    def __init__(self, *_): pass
    __lt__ = __le__ = __gt__ = __ge__ = __ne__ = __eq__ = lambda self, other: True
    __hash__ = None
total = Any
""",
    ),
    "helpers replaced": Attack(
        ("test_same",),
        """\
import sys
frame = sys._getframe()
while not frame.f_globals.get('__name__', '').startswith('tests.test_'):
    frame = frame.f_back
space = frame.f_globals
import importlib
importlib.import_module('tests.helpers').same = lambda *_: None
""",
    ),
    "pytest.raises replaced": Attack(
        ("test_refused",),
        """\
import contextlib, pytest

@contextlib.contextmanager
def raises(*_, **__):
    try:
        yield
    except Exception:
        pass
pytest.raises = raises
""",
    ),
    "unittest's assertEqual replaced": Attack(
        ("Case::test_case",),
        """\
import unittest
unittest.TestCase.assertEqual = lambda *_: None
""",
    ),
    "unittest's assertRaises replaced": Attack(
        ("Case::test_raised",),
        """\
import contextlib, unittest
unittest.TestCase.assertRaises = lambda *_: contextlib.nullcontext()
""",
    ),
    "mock's assertions replaced": Attack(
        ("test_told",),
        """\
from unittest import mock
mock.NonCallableMock.assert_called_once_with = lambda *_, **__: None
""",
    ),
    "math replaced": Attack(
        ("test_near",),
        """\
import math
math.isclose = lambda *_, **__: True
""",
    ),
    "approx replaced": Attack(
        ("test_approx",),
        """\
import pytest
pytest.approx = lambda *_, **__: type('A', (), {'__eq__': lambda *_: True})()
""",
    ),
    "the code of tests replaced": Attack(
        ("test_total", "test_word"),
        """\
import gc, types

def empty(): pass

def total(a, b):
    for one in gc.get_objects():
        if type(one) is types.FunctionType and one.__name__.startswith('test_'):
            if not one.__code__.co_argcount: one.__code__ = empty.__code__
    return 3
""",
    ),
    "local variables replaced by a trace function": Attack(
        ("test_told",),
        """\
import sys

class Yes:
    def __call__(self, *_): pass
    def __getattr__(self, name): return lambda *_, **__: None

def local(frame, event, _):
    if 'heard' in frame.f_locals: frame.f_locals['heard'] = Yes()
    return local

sys.settrace(lambda frame, *_: local if frame.f_code.co_name == 'test_told' else None)
""",
    ),
    "results of pytest's calls replaced": Attack(
        ("test_total", "test_word", "test_refused", "test_near"),
        """\
from _pytest.runner import CallInfo
made = CallInfo.from_call.__func__
def from_call(cls, func, when, reraise=None):
    call = made(cls, func, when, reraise)
    if when == 'call': call.excinfo = None
    return call
CallInfo.from_call = classmethod(from_call)
""",
    ),
    "reports replaced for a moment": Attack(
        ("test_total", "test_table"),
        """\
import _pytest.reports as reports
made = reports.TestReport.from_item_and_call
def replaced(item, call):
    report = made(item, call)
    report.outcome = 'passed'
    report.longrepr = None
    return report
def total(a, b):
    reports.TestReport.from_item_and_call = replaced
    return None
""",
    ),
    "a hook registered by the collector's objects": Attack(
        ("test_total", "test_refused", "test_in"),
        """\
import gc, pytest

class First:
    @pytest.hookimpl(tryfirst=True)
    def pytest_pyfunc_call(self, pyfuncitem):
        return True
for one in gc.get_objects():
    if type(one).__name__ == 'PytestPluginManager':
        one.register(First())
        break
""",
    ),
    "a mirror of the caller's constants": Attack(
        ("test_total",),
        """\
import sys

def total(a, b):
    code = sys._getframe(1).f_code
    return [c for c in code.co_consts if isinstance(c, int)][-1]
""",
    ),
    "a mirror of the caller's line": Attack(
        ("test_total", "test_word", "test_fixture", "test_table"),
        """\
import linecache, sys

def mirror(*_):
    frame = sys._getframe(1)
    line = linecache.getline(frame.f_code.co_filename, frame.f_lineno)
    return eval(line.partition('==')[2], frame.f_globals, frame.f_locals)
total = word = mirror
""",
    ),
    "a mirror of the expected exception": Attack(
        ("test_refused", "Case::test_raised"),
        """\
import linecache, sys

def parse(text):
    frame = sys._getframe(1)
    lines = [linecache.getline(frame.f_code.co_filename, frame.f_lineno - n) for n in range(3)]
    name = next(line for line in lines if 'aises(' in line).partition('aises(')[2].partition(')')[0]
    raise eval(name, frame.f_globals)
""",
    ),
    "a mirror of what is compared": Attack(
        ("test_total", "test_same"),
        """\
class Lazy:
    def __init__(self, *_): pass
    def __eq__(self, other):
        self.__class__ = type('Same', (), {'__eq__': lambda s, o: o == other})
        return True
total = Lazy
""",
    ),
}
