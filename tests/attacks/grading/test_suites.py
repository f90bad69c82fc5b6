"""Attacks on the tests: their files, the modules they are made of, the values they expect."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.grading.attack import (
    BUGGY,
    HIDDEN,
    TRIVIAL,
    VISIBLE,
    Attack,
    at_call,
    at_import,
    check_attacks,
    make_task,
)

# The first test file imports the code under test, which then rewrites the second.
LATE = make_task("test_add_more")
TESTS = ("tests/__init__.py", "tests/helpers.py", "tests/test_visible.py")

ATTACKS: dict[str, Attack] = {
    "edits hidden tests": Attack(files={"tests/test_hidden.py": TRIVIAL, "tests/test_more.py": TRIVIAL}),
    "deletes tests": Attack(files={"tests/test_visible.py": None}),
    "deletes every test": Attack(files=dict.fromkeys(TESTS)),
    "renames tests": Attack(files={"tests/test_visible.py": None, "tests/visible.py": VISIBLE}),
    "empties tests": Attack(files={"tests/test_visible.py": ""}),
    "skips tests": Attack(
        files={"tests/test_visible.py": f"import pytest\npytestmark = pytest.mark.skip\n{VISIBLE}"}
    ),
    "marks tests as failing": Attack(
        files={"tests/test_hidden.py": HIDDEN.replace("def test", "@pytest.mark.xfail\ndef test")}
    ),
    "has a package that replaces its tests": Attack(files={"tests/__init__.py": "import os\nos._exit(0)\n"}),
    "has the tests as a link": Attack(
        files={**dict.fromkeys(TESTS), "tests": "-> false_tests", "false_tests/test_hidden.py": TRIVIAL}
    ),
    "has a test as a link": Attack(files={"tests/test_hidden.py": "-> ../false.py", "false.py": TRIVIAL}),
    "has a test as a folder": Attack(files={"tests/test_hidden.py/__init__.py": TRIVIAL}),
    "shadows tests by a package": Attack(
        files={"tests/test_hidden/__init__.py": TRIVIAL, "tests/test_more/__init__.py": TRIVIAL}
    ),
    "shadows tests by a module": Attack(files={"test_hidden.py": TRIVIAL, "tests.py": TRIVIAL}),
    "replaces the helpers": Attack(
        files={"tests/helpers.py": "EXPECTED = {'sum': 0}\ndef same(a, b): pass\n"},
        task=make_task("test_expected", "test_same"),
    ),
    "shadows the helpers by a package": Attack(
        files={"tests/helpers/__init__.py": "EXPECTED = {'sum': 0}\ndef same(a, b): pass\n"},
        task=make_task("test_expected", "test_same"),
    ),
    "changes file times": at_import(
        """import os, pathlib
for path in pathlib.Path(__file__).parent.rglob('*'):
    try:
        os.utime(path, (2**31, 2**31))
    except OSError:
        pass"""
    ),
    "rewrites the tests on disk": Attack(
        files={
            "stats.py": f"""import pathlib
for test in pathlib.Path(__file__).parent.glob('tests/test_*.py'):
    test.unlink()
    test.write_text({TRIVIAL!r} + 'def test_add_more(): pass')
{BUGGY}"""
        },
        task=LATE,
    ),
    "rewrites the helpers on disk": at_import(
        """import pathlib
pathlib.Path(__file__).with_name('tests').joinpath('helpers.py').write_text(
    "EXPECTED = {'sum': 0}\\ndef same(a, b): pass\\n")""",
        "test_expected",
        "test_same",
    ),
    "deletes the tests on disk": at_import("import shutil\nshutil.rmtree('tests')"),
    "leaves bytecode of false tests": at_import(
        f"""import importlib.util, os, py_compile, tempfile
source = tempfile.mktemp('.py')
open(source, 'w').write({TRIVIAL!r})
for name in ('test_hidden', 'test_more', 'helpers'):
    path = os.path.abspath(f'tests/{{name}}.py')
    py_compile.compile(source, importlib.util.cache_from_source(path), path)"""
    ),
    "has false tests loaded already": at_import(
        f"""import sys, types
for name in ('tests.test_hidden', 'tests.test_more', 'test_hidden'):
    module = sys.modules[name] = types.ModuleType(name)
    exec({TRIVIAL!r}, module.__dict__)"""
    ),
    "patches the test module's globals": at_import(
        """import sys
frame = sys._getframe()
while frame:
    if 'test_' in str(frame.f_globals.get('__name__')):
        frame.f_globals['__builtins__'] = {'AssertionError': SystemError}
    frame = frame.f_back"""
    ),
    "replaces the other tests": at_call(
        """import sys
    for name, value in sys._getframe(1).f_globals.items():
        if name.startswith('test_'):
            value.__code__ = (lambda: None).__code__
    return a - b"""
    ),
    "replaces the other tests' functions": at_call(
        """import sys
    for module in list(sys.modules.values()):
        for name in list(vars(module)):
            if name.startswith('test_'):
                setattr(module, name, lambda: None)
    return a - b"""
    ),
    "patches unittest's assertions": at_import(
        """import unittest
for name in dir(unittest.TestCase):
    if name.startswith(('assert', 'fail')):
        setattr(unittest.TestCase, name, lambda *a, **k: None)""",
        "test_case",
    ),
    "patches unittest's run": at_import(
        "import unittest\nunittest.TestCase.run = lambda self, result=None: result", "test_case"
    ),
    "patches unittest's call of a method": at_import(
        "import unittest\nunittest.TestCase._callTestMethod = lambda self, method: None", "test_case"
    ),
    "patches pytest.raises": at_import(
        "import contextlib, pytest\npytest.raises = lambda *a, **k: contextlib.nullcontext()", "test_refused"
    ),
    "patches the class of pytest.raises": at_import(
        """import _pytest.raises as raises
raises.RaisesExc.__exit__ = lambda self, *a: True""",
        "test_refused",
    ),
    "patches the class of unittest's raises": at_import(
        """import unittest.case
unittest.case._AssertRaisesContext.__exit__ = lambda self, *a: True""",
        "test_refused",
    ),
    "changes the expected values": at_import(
        "import tests.helpers\ntests.helpers.EXPECTED['sum'] = 0", "test_expected"
    ),
    "changes the expected values when it is called": at_call(
        "import sys; sys.modules['tests.helpers'].EXPECTED['sum'] = a - b; return a - b", "test_expected"
    ),
    "changes a helper": at_import(
        "import tests.helpers\ntests.helpers.same = lambda a, b: None", "test_same"
    ),
    "changes a helper's code": at_import(
        "import tests.helpers\ntests.helpers.same.__code__ = (lambda a, b: None).__code__", "test_same"
    ),
}
CAUGHT = {
    "has false tests loaded already",
    "patches the test module's globals",
    "replaces the other tests' functions",
    "replaces the other tests",
    "patches unittest's assertions",
    "patches unittest's run",
    "patches unittest's call of a method",
    "patches pytest.raises",
    "patches the class of pytest.raises",
    "patches the class of unittest's raises",
    "changes a helper",
    "changes a helper's code",
}
SCAN_ONLY = {"changes the expected values", "changes the expected values when it is called"}


@pytest.mark.full
def test_no_attack_on_the_tests_is_resolved(tmp_path: Path) -> None:
    check_attacks(ATTACKS, tmp_path, scan_only=SCAN_ONLY, caught=CAUGHT)
