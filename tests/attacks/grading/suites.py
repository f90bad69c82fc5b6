"""Honest test suites with marks, helpers and files of their own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from hone.types import Checks, Commit, Environment, Task
from tests.attacks.grading.attack import BUGGY, LIMIT_S

ADD = "def test_add():\n    assert add(1, 2) == 3\n\n\n"
IMPORT = "import pytest\nfrom stats import add\n\n\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    tests: str  # the test file without its first lines
    kept: Mapping[str, str]  # name of a test -> status with the fix
    files: Mapping[str, str] = field(default_factory=dict[str, str])
    first: str = IMPORT + ADD
    file: str = "tests/test_hidden.py"

    @property
    def ids(self) -> dict[str, str]:
        """Every named test, with its status with the fix."""
        return {
            f"{self.file}::{name}": status for name, status in {"test_add": "passed", **self.kept}.items()
        }


def task_of(suite: Suite) -> Task:
    return Task(
        id="suite",
        problem="add(1, 2) gives -1, not 3.",
        environment=Environment(
            image="host",
            history=(
                Commit(message="Tests", files={"stats.py": BUGGY, "tests/__init__.py": "", **suite.files}),
            ),
        ),
        checks=Checks(
            fail_to_pass=tuple(suite.ids)[:1],
            pass_to_pass=tuple(suite.ids)[1:],
            test_files={suite.file: suite.first + suite.tests},
            gold_patch="",
            timeout_s=LIMIT_S,
        ),
        source="tests",
    )


HELPERS = """import pytest

later = pytest.mark.skip(reason="later")
needs_x = pytest.mark.skipif(True, reason="there is no x")
known = pytest.mark.xfail(reason="known")
CALLS = []


def check(a, b):
    CALLS.append(a)
    assert a == b


def without(name):
    return pytest.mark.skipif(True, reason=name)
"""
HOOKS = """import pytest


def pytest_collection_modifyitems(items):
    for item in items:
        if "slow" in item.name:
            item.add_marker(pytest.mark.skip(reason="slow"))
        if "known" in item.name:
            item.add_marker(pytest.mark.xfail)
"""
SUITES: dict[str, Suite] = {
    "marks": Suite(
        tests="""@pytest.mark.xfail
def test_known():
    assert add(1, 1) == 5


@pytest.mark.xfail(strict=True, raises=AssertionError, reason="known")
def test_strict():
    assert add(1, 1) == 5


@pytest.mark.xfail
def test_unexpected():
    assert add(1, 1) == 2


@pytest.mark.skip
def test_later():
    pass


@pytest.mark.skipif("sys.platform != 'x'")
def test_platform():
    pass
""",
        kept={
            "test_known": "xfailed",
            "test_strict": "xfailed",
            "test_unexpected": "passed",
            "test_later": "skipped",
            "test_platform": "skipped",
        },
    ),
    "calls": Suite(
        tests="""def test_known():
    pytest.xfail("later")


def test_later():
    pytest.skip("later")


def test_absent():
    pytest.importorskip("no_such_module")


@pytest.fixture
def absent():
    pytest.skip("absent")


def test_fixture(absent):
    pass


def test_item(request):
    request.node.add_marker(pytest.mark.xfail)
    assert add(1, 1) == 5
""",
        kept={
            "test_known": "xfailed",
            "test_later": "skipped",
            "test_absent": "skipped",
            "test_fixture": "skipped",
            "test_item": "xfailed",
        },
    ),
    "parameters with marks": Suite(
        tests="""@pytest.mark.parametrize("a", [
    1,
    pytest.param(2, marks=pytest.mark.xfail),
    pytest.param(3, marks=[pytest.mark.skip, pytest.mark.filterwarnings("ignore")]),
])
def test_one(a):
    assert a == 1
""",
        kept={"test_one[1]": "passed", "test_one[2]": "xfailed", "test_one[3]": "skipped"},
    ),
    "unittest": Suite(
        first=f"import unittest\n{IMPORT}{ADD}",
        tests="""class Case(unittest.TestCase):
    @unittest.expectedFailure
    def test_known(self):
        self.assertEqual(add(1, 1), 5)

    @unittest.skip("later")
    def test_later(self):
        pass

    def test_within(self):
        self.skipTest("later")

    def test_raised(self):
        raise unittest.SkipTest("later")


@unittest.skipIf(True, "later")
class Later(unittest.TestCase):
    def test_class(self):
        pass


class Absent(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise unittest.SkipTest("absent")

    def test_set_up(self):
        pass
""",
        kept={
            "Case::test_known": "xfailed",
            "Case::test_later": "skipped",
            "Case::test_within": "skipped",
            "Case::test_raised": "skipped",
            "Later::test_class": "skipped",
            "Absent::test_set_up": "skipped",
        },
    ),
    "a mark of a module": Suite(
        tests="pytestmark = [pytest.mark.xfail(reason='known', raises=ZeroDivisionError)]\n\n\n"
        "def test_known():\n    1 / 0\n",
        kept={"test_known": "xfailed"},
    ),
    "a mark of a class": Suite(
        tests="""@pytest.mark.xfail
class TestKnown:
    def test_known(self):
        assert add(1, 1) == 5


class TestLater:
    pytestmark = pytest.mark.skip

    def test_later(self):
        pass


class TestBelow(TestLater):
    pass
""",
        kept={
            "TestKnown::test_known": "xfailed",
            "TestLater::test_later": "skipped",
            "TestBelow::test_later": "skipped",
        },
    ),
    "hooks of a conftest.py": Suite(
        tests="def test_slow():\n    pass\n\n\ndef test_known():\n    assert add(1, 1) == 5\n",
        kept={"test_slow": "skipped", "test_known": "xfailed"},
        files={"tests/conftest.py": HOOKS},
    ),
    "hooks of a conftest.py above, taken from another module": Suite(
        tests="def test_slow():\n    pass\n\n\ndef test_known():\n    assert add(1, 1) == 5\n",
        kept={"test_slow": "skipped", "test_known": "xfailed"},
        files={"conftest.py": "from tests.hooks import *\n", "tests/hooks.py": HOOKS},
    ),
    "hooks of a conftest.py above the tests of a package": Suite(
        tests="def test_slow():\n    pass\n\n\ndef test_known():\n    assert add(1, 1) == 5\n",
        kept={"test_slow": "skipped", "test_known": "xfailed"},
        files={"package/__init__.py": "", "package/conftest.py": HOOKS, "package/tests/__init__.py": ""},
        file="package/tests/test_hidden.py",
    ),
    "hooks of the repository's own plugin": Suite(
        tests="def test_kept():\n    assert add(1, 0) == 1\n",
        kept={"test_kept": "passed"},
        files={
            "conftest.py": "from plugin import *\n",
            "plugin.py": "def pytest_configure(config):\n    pass\n\n\ndef setup():\n    pass\n",
        },
    ),
    "marks of helpers": Suite(
        first=f"from tests.helpers import *\n{IMPORT}{ADD}",
        tests="""@needs_x
def test_x():
    pass


@without("y")
def test_y():
    pass


@known
def test_known():
    check(add(1, 1), 5)
""",
        kept={"test_x": "skipped", "test_y": "skipped", "test_known": "xfailed"},
        files={"tests/helpers.py": HELPERS},
    ),
    "marks of a helper's helper": Suite(
        first=f"from .support import later_too\n{IMPORT}{ADD}",
        tests="@later_too\ndef test_later():\n    pass\n",
        kept={"test_later": "skipped"},
        files={
            "tests/helpers.py": HELPERS,
            "tests/support.py": "from .helpers import check, later as later_too\n",
        },
    ),
    "tests of another file, with marks": Suite(
        first=f"from tests.test_base import *\nfrom tests.test_base import test_shared\n{IMPORT}{ADD}",
        tests="test_shared = pytest.mark.skip(test_shared)\n",
        kept={"test_shared": "skipped"},
        files={"tests/test_base.py": "def test_shared():\n    pass\n\n\ndef setup_module():\n    pass\n"},
    ),
    "names that the text does not show": Suite(
        tests="""import sys

for name in ("one", "two"):
    globals()[f"test_{name}"] = lambda: None
    setattr(sys.modules[__name__], f"Test{name}", type(f"Test{name}", (), {"test": lambda self: None}))


def test_later():
    globals()["cache"] = {}
    global count
    count = 1
""",
        kept={"test_one": "passed", "test_two": "passed", "Testone::test": "passed", "test_later": "passed"},
    ),
    "names that others put": Suite(
        first=f"from tests.helpers import register\n{IMPORT}register()\n\n\n{ADD}",
        tests="def test_put(request):\n    assert made == request.module.value == 4\n",
        kept={"test_put": "passed"},
        files={
            "tests/helpers.py": "import sys\n\n\ndef register():\n"
            "    sys._getframe(1).f_globals['made'] = 4\n",
            "tests/conftest.py": "import pytest\n\n\n@pytest.fixture(autouse=True)\n"
            "def value(request):\n    request.module.value = 4\n",
        },
    ),
    "names that the repository puts when it is called": Suite(
        first=f"from figures import figure\n{IMPORT}figure('one', 1)\nfrom stats import double\n\n\n{ADD}",
        tests="def test_one(one):\n    assert one == double(one) - 1\n",
        kept={"test_one": "passed"},
        files={
            "figures.py": "import sys\nimport pytest\n\n\ndef figure(name, value):\n"
            "    fixture = pytest.fixture(name=name)(lambda: value)\n"
            "    sys._getframe(1).f_globals[f'{name}_fixture'] = fixture\n"
        },
    ),
    "values that tests replace": Suite(
        first=f"from unittest import mock\n\nfrom tests import helpers\n{IMPORT}{ADD}",
        tests="""LIMIT = 3
total = 0


def count():
    global total
    total += 1


@pytest.fixture(scope="module", autouse=True)
def limit():
    with mock.patch("tests.test_hidden.LIMIT", 4):
        yield


def test_replaced(monkeypatch):
    monkeypatch.setattr(helpers, "check", lambda a, b: None)
    monkeypatch.setattr("tests.test_hidden.ADDED", 1, raising=False)
    helpers.CALLS = [1]
    helpers.check(1, 2)
    count()
    assert LIMIT == 4


@mock.patch.object(helpers, "later", None)
@mock.patch.dict("sys.modules", {"tests.helpers": mock.Mock()})
def test_patched():
    assert helpers.later is None
    assert total == 1
""",
        kept={"test_replaced": "passed", "test_patched": "passed"},
        files={"tests/helpers.py": HELPERS},
    ),
    "a module that is reloaded": Suite(
        first=f"import importlib\n\nfrom tests import helpers\n{IMPORT}{ADD}",
        tests="def test_reloaded():\n    importlib.reload(helpers).check(1, 1)\n",
        kept={"test_reloaded": "passed"},
        files={"tests/helpers.py": HELPERS},
    ),
    "files that tests write": Suite(
        first=f"import pathlib\n{IMPORT}HERE = pathlib.Path(__file__).parent\n\n\n{ADD}",
        tests="""def test_files(tmp_path):
    golden = HERE / "data" / "golden.txt"
    text = golden.read_text()
    golden.unlink()
    golden.write_text(text)
    (HERE / "data" / "made.txt").write_text("made")
    (HERE / "data" / "output").mkdir(exist_ok=True)
    (HERE / "data" / "output" / "sum.txt").write_text(str(add(1, 1)))
    (HERE / "data" / "test.db").write_bytes(b"made")
    assert text == "3"
""",
        kept={"test_files": "passed"},
        files={
            "tests/data/golden.txt": "3",
            "tests/data/output/sum.txt": "old",
            "tests/data/test.db": "old",
        },
    ),
    "what a decorator marks": Suite(
        first=f"import functools\n{IMPORT}{ADD}",
        tests="""def expected_to_fail(function):
    @functools.wraps(function)
    def wrapper(*args):
        try:
            function(*args)
        except AssertionError:
            pytest.skip("a known failure")
    return wrapper


@expected_to_fail
def test_known():
    assert add(1, 1) == 5
""",
        kept={"test_known": "skipped"},
    ),
    "a builtin's name, and names of pytest": Suite(
        first=f"from builtins import *\nfrom os.path import *\n{IMPORT}{ADD}",
        tests="""from math import *

open = sorted = None
__test__ = True


def setup_module(module):
    module.ready = True


def __getattr__(name):
    raise AttributeError(name)


def pytest_generate_tests(metafunc):
    if "value" in metafunc.fixturenames:
        metafunc.parametrize("value", [1])


def test_value(value):
    assert pow(value, 2) == 1.0 and ready
""",
        kept={"test_value[1]": "passed"},
    ),
}
