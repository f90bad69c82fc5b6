"""Suites besides pytest under the trusted runner: unittest on every Python, sympy's runner, other scripts."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path

import pytest

from hone.grading import Grader, GradingSettings
from hone.grading.run import Edition, TestRun
from hone.grading.titles import official_names
from hone.grading.verdict import words_of
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Checks, Commit, Environment, Task, TestStatus, Verdict
from tests.grading.example import patch_of
from tests.grading.local import local_task
from tests.grading.test_interpreters import ENVIRONMENTS, OLDEST
from tests.interpreters import shared_environment

pytestmark = pytest.mark.sandbox
BUGGY = "def add(a, b):\n    return a - b\n\n\ndef double(a):\n    return a + 2\n"
FIXED = BUGGY.replace("a - b", "a + b").replace("a + 2", "a * 2")
TESTS = '''import unittest

from stats import add, double


def setUpModule():
    global ready
    ready = True


class Case(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.one = 1

    def test_add(self):
        self.assertEqual(add(self.one, 2), 3)

    def test_each(self):
        """Every sum is right."""
        for number in range(3):
            with self.subTest(number=number):
                self.assertEqual(add(number, 1), number + 1)

    def test_double(self):
        self.assertTrue(ready)
        self.assertEqual(double(5), 10)

    def test_four(self):
        self.assertEqual(double(2), 4)

    @unittest.skip("always")
    def test_skipped(self):
        pass

    def test_skips(self):
        self.skipTest("now")

    @unittest.expectedFailure
    def test_known(self):
        self.assertEqual(add(1, 1), 5)


class Broken(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        raise ValueError("never ready")

    def test_never(self):
        pass
'''
SCRIPT = """: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
"""
FILES: dict[str, str | None] = {"stats.py": BUGGY, "tests/__init__.py": "", "tests/test_all.py": TESTS}


def grade_all(
    task: Task, patches: Mapping[str, str], cache: Path, venv: Path | None = None
) -> dict[str, Verdict]:
    task = dataclasses.replace(task, checks=dataclasses.replace(task.checks, gold_patch=patches["gold"]))

    async def scenario() -> dict[str, Verdict]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(venv=venv), cache=cache)
            return {name: await grader.grade(task, patch) for name, patch in patches.items()}

    return asyncio.run(scenario())


def run_all(task: Task, patches: Mapping[str, str], cache: Path) -> dict[str, TestRun]:
    async def scenario() -> dict[str, TestRun]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=cache)
            runs = {name: await grader.run_edited(task, text, plain) for name, text in patches.items()}
            return {name: run for name, (run,) in runs.items()}

    return asyncio.run(scenario())


def plain(texts: Mapping[str, str]) -> list[Edition]:
    return [Edition()]


def make_task(
    script: str,
    files: Mapping[str, str | None],
    failing: tuple[str, ...],
    passing: tuple[str, ...],
    parser: str,
) -> Task:
    checks = Checks(
        fail_to_pass=failing,
        pass_to_pass=passing,
        test_files={},
        gold_patch="",
        script=script,
        parser=parser,
        timeout_s=120,
    )
    history = (Commit(message="Base", files=files),)
    environment = Environment(image="host", history=history)
    return Task(id="suite", problem="", environment=environment, checks=checks, source="tests")


def patches_of(task: Task, tmp_path: Path, changes: Mapping[str, Mapping[str, str | None]]) -> dict[str, str]:
    base = prepare(task, tmp_path / "workspaces")
    return {name: patch_of(base, tmp_path, files) for name, files in changes.items()}


def test_tests_that_unittest_runs_are_named_by_file_class_and_method(tmp_path):
    named = {
        name: f"tests/test_all.py::Case::test_{name}" for name in ("add", "each", "double", "four", "known")
    }
    task = make_task("", FILES, (named["add"], named["double"]), (named["four"], named["known"]), "unittest")
    changes: dict[str, dict[str, str | None]] = {
        "gold": {"stats.py": FIXED},
        "half": {"stats.py": BUGGY.replace("a - b", "a + b")},
    }
    found = grade_all(task, patches_of(task, tmp_path, changes), tmp_path / "workspaces")
    assert [(name, verdict.resolved) for name, verdict in found.items()] == [("gold", True), ("half", False)]
    assert set(found["gold"].tests) == {named[name] for name in ("add", "double", "four", "known")}
    assert found["gold"].tests[named["known"]] is TestStatus.XFAILED
    assert found["half"].tests[named["add"]] is TestStatus.PASSED
    assert found["half"].tests[named["double"]] is TestStatus.FAILED


def check_interpreter(python: tuple[str, ...], tmp_path: Path) -> None:
    venv = shared_environment(*python)
    qualified = tuple(map(int, python[0].split("."))) >= (3, 11)

    def name(test: str) -> str:
        return f"{test} (tests.test_all.Case{'.' + test if qualified else ''})"

    script = SCRIPT.format(command="python -m unittest -v tests.test_all")
    task = local_task(
        tmp_path,
        {path: text or "" for path, text in FILES.items()},
        fail_to_pass=(name("test_add"), "Every sum is right.", name("test_double")),
        pass_to_pass=(name("test_four"), name("test_skipped"), name("test_skips")),
        test_files={},
        gold_patch="",
        script=script,
        parser="parse_log_django",
    )
    changes = {
        "gold": {"stats.py": FIXED},
        "half": {"stats.py": BUGGY.replace("a + 2", "a * 2")},
        "broken": {"stats.py": BUGGY + "def\n"},
        "test-editing": {
            "stats.py": BUGGY + "# no fix\n",
            "tests/test_all.py": "",
            "tests/__init__.py": "1 / 0\n",
        },
    }
    patches = {"empty": "", **patches_of(task, tmp_path, changes)}
    verdicts = grade_all(task, patches, tmp_path / "workspaces", venv)
    assert [each for each, verdict in verdicts.items() if verdict.resolved] == ["gold"], verdicts
    assert [each for each, verdict in verdicts.items() if verdict.tampered] == ["test-editing"], verdicts
    gold, half = verdicts["gold"].tests, verdicts["half"].tests
    assert [gold[name(test)] for test in ("test_skipped", "test_skips")] == [TestStatus.SKIPPED] * 2
    assert half[name("test_double")] is TestStatus.PASSED
    assert half[name("test_add")] is TestStatus.FAILED
    assert half["Every sum is right."] is not TestStatus.PASSED


@pytest.mark.full
@pytest.mark.parametrize("python", [OLDEST, *ENVIRONMENTS[4::2]], ids="-".join)
def test_unittest_gives_the_same_verdicts_on_every_python(python: tuple[str, ...], tmp_path: Path) -> None:
    check_interpreter(python, tmp_path)


def test_names_and_results_of_unittest_are_those_of_its_log(tmp_path: Path) -> None:
    script = SCRIPT.format(command="python3 -m unittest -v tests.test_all")
    by_log = SCRIPT.format(command="python3 -m unittest -v tests.test_all || true")
    task = make_task(script, FILES, ("x",), (), "parse_log_django")
    patches = patches_of(task, tmp_path, {"gold": {"stats.py": FIXED}})
    (ours,) = run_all(task, patches, tmp_path / "workspaces").values()
    logged = dataclasses.replace(task, checks=dataclasses.replace(task.checks, script=by_log))
    (theirs,) = run_all(logged, patches, tmp_path / "workspaces").values()
    assert theirs.by_log
    assert (ours.by_log, ours.finished, ours.tampered) == (False, True, None)
    named = official_names(words_of(ours.statuses), "parse_log_django", suite=ours.suite, titles=ours.titles)
    found = words_of(theirs.statuses)
    never = {test for test in found if "setUpClass" in test}  # of the class that was never ready
    assert named == {test: word for test, word in found.items() if test not in never}
    assert never
    assert ours.statuses["tests/test_all.py::Broken::test_never"] is TestStatus.ERROR


# --- sympy

RUNNER = '''import inspect
import sys


def test(*paths):
    """Run the tests of files as sympy's runner prints them."""
    failed = False
    for path in paths:
        names = {"__file__": path}
        with open(path) as file:
            exec(compile(file.read(), path, "exec"), names)
        tests = [each for name, each in names.items() if name.startswith("test_")]
        tests.sort(key=lambda each: inspect.getsourcelines(each)[1])
        sys.stdout.write("%s[%d] " % (path, len(tests)))
        bad = []
        for each in tests:
            sys.stdout.write("\\n%s " % each.__name__)
            try:
                each()
                sys.stdout.write("ok")
            except Exception as error:
                kind = {"Skipped": "s", "XFail": "f", "XPass": "X"}.get(type(error).__name__)
                if kind is None:
                    kind = "F" if type(error) is AssertionError else "E"
                    bad.append(each.__name__)
                sys.stdout.write(kind)
        sys.stdout.write("  [FAIL]\\n" if bad else "  [OK]\\n")
        for name in bad:
            sys.stdout.write("____ %s:%s ____\\n" % (path, name))
        failed = failed or bool(bad)
    return not failed
'''
MARKS = """import functools


class XFail(Exception):
    pass


class XPass(Exception):
    pass


class Skipped(Exception):
    pass


def XFAIL(func):
    @functools.wraps(func)
    def wrapper():
        try:
            func()
        except Exception:
            raise XFail(func.__name__)
        raise XPass(func.__name__)

    return wrapper


def skip(text):
    raise Skipped(text)


def raises(expected, code):
    try:
        code()
    except expected:
        return
    raise AssertionError("DID NOT RAISE")
"""
SYMPY = {
    "bin/test": "+x #!/usr/bin/env python3\nimport sys\nsys.path.insert(0, '.')\n"
    "from sympy.testing.runtests import test\n"
    "sys.exit(not test(*[word for word in sys.argv[1:] if word.endswith('.py')]))\n",
    "sympy/__init__.py": "",
    "sympy/testing/__init__.py": "",
    "sympy/testing/runtests.py": RUNNER,
    "sympy/testing/pytest.py": MARKS,
    "sympy/core/__init__.py": "",
    "sympy/core/cache.py": "def clear_cache():\n    pass\n",
    "sympy/sets/__init__.py": "",
    "sympy/sets/sums.py": BUGGY,
}
SETS = """from sympy.sets.sums import add, double
from sympy.testing.pytest import XFAIL, raises, skip


def test_add():
    assert add(1, 2) == 3


@XFAIL
def test_known():
    assert add(1, 1) == 5


def test_double():
    assert double(3) == 6


def test_refused():
    raises(TypeError, lambda: add(1, "a"))


def test_skipped():
    skip("not now")


def test_error():
    assert {}["missing"]


def test_last():
    assert double(2) == 4
"""
SUMS = """from sympy.sets.sums import add


def test_sums():
    assert add(5, 0) == 5


def test_end():
    pass
"""
SYMPY_FILES = "sympy/sets/tests/test_sets.py sympy/sets/tests/test_sums.py"
SYMPY_SCRIPT = f"""cd /testbed
mkdir -p sympy/sets/tests
cat > sympy/sets/tests/test_sets.py <<'EOF_1'
{SETS}EOF_1
cat > sympy/sets/tests/test_sums.py <<'EOF_2'
{SUMS}EOF_2
{SCRIPT}"""
SYMPY_COMMAND = f"PYTHONWARNINGS='ignore::UserWarning' bin/test -C --verbose {SYMPY_FILES}"


def sympy_task(command: str) -> Task:
    script = SYMPY_SCRIPT.replace("{command}", command)
    failing, passing = ("test_add", "test_double"), ("test_refused", "test_sums")
    files = {name: text.removeprefix("+x ") for name, text in SYMPY.items()}
    return make_task(script, files, failing, passing, "parse_log_sympy")


PRINTS = RUNNER.replace("each()", "pass")  # every test is ok


def test_runner_of_sympy_is_replaced_by_the_trusted_session(tmp_path: Path) -> None:
    python = SYMPY_COMMAND.replace("bin/test", "python3 bin/test")
    task, by_log = sympy_task(python), sympy_task(f"{python} || true")
    changes = {
        "gold": {"sympy/sets/sums.py": FIXED},
        "half": {"sympy/sets/sums.py": BUGGY.replace("a - b", "a + b")},
        "replaces the runner": {"sympy/testing/runtests.py": PRINTS},
        "skips": {
            "sympy/sets/sums.py": "from sympy.testing.pytest import skip\n"
            + BUGGY.replace("return", "skip('');")
        },
        "fails as expected": {
            "sympy/sets/sums.py": "from sympy.testing.pytest import XFail\n"
            + BUGGY.replace("return", "raise XFail();")
        },
        "exits": {"sympy/sets/sums.py": "import os\nos._exit(0)\n"},
    }
    patches = patches_of(task, tmp_path, changes)
    verdicts = grade_all(task, patches, tmp_path / "workspaces")
    assert [name for name, verdict in verdicts.items() if verdict.resolved] == ["gold"], verdicts
    some = {name: patches[name] for name in ("gold", "half")}
    ours, theirs = (run_all(each, some, tmp_path / "workspaces") for each in (task, by_log))
    for name in some:
        words, run = words_of(ours[name].statuses), ours[name]
        named = official_names(words, "parse_log_sympy", suite=run.suite, titles=run.titles)
        assert named == words_of(theirs[name].statuses)
        assert "test_last" not in named  # the parser does not read the last line of a file


# --- scripts without markers, and commands that lead to a test run

PYTEST = "import stats\n\n\ndef test_add():\n    assert stats.add(1, 2) == 3\n"
OWN_RUNNER = """import stats

passed = stats.add(1, 2) == 3
print("PASSED" if passed else "FAILED", "test_add")
print("=== 1 passed in 0.1s ===" if passed else "=== 1 failed in 0.1s ===")
raise SystemExit(not passed)
"""
UNMARKED = {
    "pytest": (
        "cd /testbed\npython3 -m pytest -p no:cacheprovider tests/test_add.py\n",
        "tests/test_add.py::test_add",
    ),
    "own": ("set -e\ncd /testbed\nPYTHONPATH=. python3 tests/own.py\nexit 0\n", "test_add"),
}


@pytest.mark.parametrize("kind", UNMARKED)
def test_script_without_markers_is_graded(kind: str, tmp_path: Path) -> None:
    script, name = UNMARKED[kind]
    files = {**FILES, "tests/test_add.py": PYTEST, "tests/own.py": OWN_RUNNER}
    task = make_task(script, files, (name,), (), "parse_log_pytest")
    forged = f"mark = '>' * 5\nprint(f'{{mark}} Start Test Output\\nPASSED {name}', flush=True)\n"
    exits = "import os\nprint('nothing', flush=True)\nos._exit(3)\n"
    changes = {
        "gold": {"stats.py": FIXED},
        "forged": {"stats.py": forged + BUGGY},
        "exits": {"stats.py": exits + BUGGY},
    }
    patches = {"empty": "", **patches_of(task, tmp_path, changes)}
    verdicts = grade_all(task, patches, tmp_path / "workspaces")
    assert [each for each, verdict in verdicts.items() if verdict.resolved] == ["gold"], verdicts
    assert (verdicts["forged"].tampered is not None) == (kind == "own")


MAKEFILE = "test:\n\t@python3 -m unittest -v tests.test_all\n"
TOX = "[testenv]\ncommands = python3 -m unittest {posargs}\n"


@pytest.mark.full
@pytest.mark.parametrize(
    "command", ["make test", "tox --current-env -- -v tests.test_all", "python3 tests/run.py"]
)
def test_command_that_leads_to_unittest_is_taken_over(command: str, tmp_path: Path) -> None:
    run = "import sys, unittest\nsys.path.insert(0, '.')\nunittest.main('tests.test_all', verbosity=2)\n"
    files = {**FILES, "Makefile": MAKEFILE, "tox.ini": TOX, "tests/run.py": run}
    failing = ("test_add (tests.test_all.Case.test_add)",)
    task = make_task(SCRIPT.format(command=command), files, failing, (), "parse_log_django")
    succeeds = f"print('{failing[0]} ... ok')"
    changes = {
        "gold": {"stats.py": FIXED},
        "edits what runs": {
            "Makefile": f"test:\n\t@echo '{failing[0]} ... ok'\n",
            "tox.ini": f'[testenv]\ncommands = python3 -c "{succeeds}"\n',
            "tests/run.py": succeeds,
        },
    }
    verdicts = grade_all(task, patches_of(task, tmp_path, changes), tmp_path / "workspaces")
    assert [each for each, verdict in verdicts.items() if verdict.resolved] == ["gold"], verdicts
