"""The test run in a script's test command, and the files of the tree that a command leads to."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hone.grading.commands import Indirect, Suite, TestCommand, find_command, follow

DJANGO = "./tests/runtests.py --verbosity 2 --settings=test_sqlite --parallel {} dbshell.test_postgresql"


def find(text: str) -> TestCommand:
    found = find_command(text)
    assert isinstance(found, TestCommand)
    return found


@pytest.mark.parametrize(
    ("command", "python", "files"),
    [
        ("pytest", ("python",), ()),
        ("pytest -rA tests/a.py", ("python",), ("tests/a.py",)),
        ("pytest -rA tests/a.py 2>&1", ("python",), ("tests/a.py",)),
        ("bin/pytest a.py b.py", ("bin/python",), ("a.py", "b.py")),
        ("/usr/bin/python3.9 -m pytest -p no:x a.py", ("/usr/bin/python3.9",), ("a.py",)),
        ("python -X dev -bb -m pytest --durations 25 a.py", ("python",), ("a.py",)),
        ("\n# a comment\n  # another\n\npytest a.py\n \n", ("python",), ("a.py",)),
    ],
)
def test_pytest_is_found_in_a_test_command(
    command: str, python: tuple[str, ...], files: tuple[str, ...]
) -> None:
    found = find(command)
    assert (found.suite, found.python, found.files, found.env) == (Suite.PYTEST, python, files, {})


def test_assignments_and_options_of_a_test_command_are_kept() -> None:
    found = find("A=1 B=x=y pytest --tb=short -k 'one or two' --strict-markers a.py")
    assert (found.env, found.files) == ({"A": "1", "B": "x=y"}, ("a.py",))
    assert found.arguments != find("pytest a.py").arguments
    warned = find("PYTHONWARNINGS=default python -W error -Wignore::UserWarning -m pytest a.py")
    assert warned.env == {"PYTHONWARNINGS": "default,error,ignore::UserWarning"}


@pytest.mark.parametrize("jobs", ["1", "4", "auto"])
def test_runner_of_django_runs_in_one_process(jobs: str) -> None:
    found = find(DJANGO.format(jobs))
    assert found.suite is Suite.UNITTEST
    assert found.program == tuple(DJANGO.format("1").split())
    assert "tests/dbshell/test_postgresql.py" in found.files
    assert find("python tests/runtests.py --settings=x --parallel=3 a").program[2] == "--parallel=1"


@pytest.mark.parametrize(
    ("command", "program", "file"),
    [
        ("python -m unittest -v pkg.test_a", "-m unittest -v pkg.test_a", "pkg/test_a.py"),
        ("python3 -m unittest discover -s tests", "-m unittest discover -s tests", "tests.py"),
        ("python manage.py test shop -v 2", "manage.py test shop -v 2", "shop.py"),
        ("python -m django test shop", "-m django test shop", "shop.py"),
    ],
)
def test_runs_on_unittests_runner_are_found(command: str, program: str, file: str) -> None:
    found = find(command)
    assert (found.suite, " ".join(found.program)) == (Suite.UNITTEST, program)
    assert file in found.files


def test_runner_of_sympy_is_found() -> None:
    found = find("PYTHONWARNINGS='ignore::UserWarning' bin/test -C --verbose sympy/sets/tests/test_sets.py")
    assert (found.suite, found.files) == (Suite.SYMPY, ("sympy/sets/tests/test_sets.py",))
    assert found.env == {"PYTHONWARNINGS": "ignore::UserWarning", "SYMPY_USE_CACHE": "no"}


@pytest.mark.parametrize(
    "command",
    [
        "",
        "nosetests tests",
        "pytest a; true",
        "pytest a || true",
        "pytest a\npytest b",
        "pytest 'a",
        "python -m tox",
        "python pytest a",
        "python -i -m pytest a",
        "python manage.py migrate",
        "python /elsewhere/run.py",
        "bin/test",
        "bin/test -k words sympy/a.py",
        "A=1",
    ],
)
def test_other_commands_are_no_test_run(command: str) -> None:
    assert find_command(command) is None


@given(st.text(max_size=80))
def test_any_text_is_a_command_or_none(text: str) -> None:
    assert isinstance(find_command(text), TestCommand | Indirect | None)


def led(command: str, **texts: str) -> TestCommand | None:
    found = find_command(command)
    assert isinstance(found, Indirect)
    named = {name.replace("_", "."): text for name, text in texts.items()}
    return follow(found, {name: text for name, text in named.items() if name in found.files})


SPHINX = """[tox]
envlist = docs

[testenv]
setenv =
    PYTHONWARNINGS = all,ignore::DeprecationWarning:docutils.io
    PYTEST_ADDOPTS = {env:PYTEST_ADDOPTS:} --color yes
commands=
    python -X dev -m pytest -rA --durations 25 {posargs}

[testenv:lint]
commands =
    ruff check
    pytest a.py

[testenv:other]
commands = {envpython} -m unittest {posargs:discover -s tests}
"""


def test_command_whose_result_tox_ignores_is_followed() -> None:
    found = led("tox --current-env -e a", tox_ini="[testenv:a]\ncommands = -pytest a.py\n")
    assert found is not None
    assert (found.suite, found.files) == (Suite.PYTEST, ("a.py",))


def test_environment_of_tox_that_runs_pytest_is_followed() -> None:
    found = led("tox --current-env -epy39 -v -- tests/test_build.py", tox_ini=SPHINX)
    assert found is not None
    assert (found.suite, found.files) == (Suite.PYTEST, ("tests/test_build.py",))
    assert found.env == {"PYTHONWARNINGS": "all,ignore::DeprecationWarning:docutils.io"}
    other = led("tox --current-env -e other", tox_ini=SPHINX)
    assert other is not None
    assert other.program == ("-m", "unittest", "discover", "-s", "tests")


@pytest.mark.parametrize(
    "command", ["tox -epy39 -- a.py", "tox --current-env -elint", "tox --current-env -e a -e b", "tox"]
)
def test_other_environments_of_tox_are_not_followed(command: str) -> None:
    assert led(command, tox_ini=SPHINX) is None


MAKEFILE = """PYTHON ?= python3
ARGS = -v \\
  --failfast
.PHONY: test check

check: test

test: build
	@$(PYTHON) -m unittest discover $(ARGS)

build:

lint:
	ruff check
	ruff format

both: lint
	pytest

shell:
	$(shell which pytest)

again:
	$(MAKE) check
"""


@pytest.mark.parametrize("target", ["test", "check", "test ARGS='-v --failfast'"])
def test_target_of_make_that_runs_unittest_is_followed(target: str) -> None:
    found = led(f"make {target}", Makefile=MAKEFILE)
    assert found is not None
    assert (found.python, found.program) == (("python3",), ("-m", "unittest", "discover", "-v", "--failfast"))


@pytest.mark.parametrize(
    "target", ["lint", "both", "shell", "again", "nothing", "", "-C x test", "test lint"]
)
def test_other_targets_of_make_are_not_followed(target: str) -> None:
    assert led(f"make {target}".strip(), Makefile=MAKEFILE) is None
    assert led("make test") is None


def test_script_that_uses_unittest_is_followed() -> None:
    text = "import unittest\nunittest.main()\n"
    found = led("python run.py -v", run_py=text)
    assert found is not None
    assert (found.suite, found.program) == (Suite.UNITTEST, ("run.py", "-v"))
    assert led("python run.py", run_py="print('ok')\n") is None
    assert led("python run.py", run_py="import unittest, nose\nnose.main()\n") is None
    assert led("python run.py") is None


def test_tests_of_setuptools_are_followed_without_another_runner() -> None:
    plain = "from setuptools import setup\nsetup(test_suite='tests')\n"
    found = led("python setup.py test", setup_py=plain)
    assert found is not None
    assert found.program == ("setup.py", "test")
    assert led("python setup.py test", setup_py=plain, setup_cfg="[aliases]\ntest=pytest\n") is None
    assert led("python setup.py build", setup_py=plain) is None


@given(st.text(max_size=200), st.sampled_from(["make test", "tox --current-env", "python setup.py test"]))
def test_any_text_of_a_tree_is_followed_or_not(text: str, command: str) -> None:
    led(command, Makefile=text, tox_ini=text, setup_py=text, setup_cfg=text)
