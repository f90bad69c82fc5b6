"""What goes wrong without any patch is a grader error with its reason; what a patch causes is its failure."""

from __future__ import annotations

import asyncio
import dataclasses
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import hone.grading.run as grading_run
from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import Provider, Sandbox, SandboxSpec, make_provider
from hone.sandbox.contract import Mount
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Task, Verdict
from tests.grading.example import patch_of
from tests.grading.local import graded, local_task, read_no_patch
from tests.interpreters import find_python, shared_environment

pytestmark = pytest.mark.sandbox

BUGGY = "def add(a, b):\n    return a - b\n"
FIXED = BUGGY.replace("a - b", "a + b")
WRONG = BUGGY.replace("a - b", "-b + a")
ENDS = "import os\n\ngetattr(os, '_ex' + 'it')(0)\n"  # as no reading of the patch finds it
TEST = """from stats import add


def test_add():
    assert add(1, 3) == 4


def test_nothing():
    assert add(3, 0) == 3
"""
FILES = {"stats.py": BUGGY, "tests/test_stats.py": TEST}
NAMED = {
    "fail_to_pass": ("tests/test_stats.py::test_add",),
    "pass_to_pass": ("tests/test_stats.py::test_nothing",),
}


def example(
    tmp_path: Path, files: dict[str, str] | None = None, **checks: object
) -> tuple[Task, dict[str, str]]:
    """Return a task with its reference patch, and patches of `stats.py`."""
    task = local_task(tmp_path, {**FILES, **(files or {})}, **NAMED, gold_patch="")
    base = prepare(task, tmp_path / "workspaces")
    texts = {"gold": FIXED, "wrong": WRONG, "ends": ENDS}
    patches = {name: patch_of(base, tmp_path, {"stats.py": text}) for name, text in texts.items()}
    return with_checks(task, gold_patch=patches["gold"], **checks), patches


def with_checks(task: Task, **checks: object) -> Task:
    return dataclasses.replace(task, checks=dataclasses.replace(task.checks, **checks))  # type: ignore[arg-type]


def grade(
    task: Task, patches: dict[str, str], tmp_path: Path, venv: Path | None = None
) -> dict[str, Verdict | GraderError]:
    return graded(task, patches, tmp_path / "workspaces", venv)


@pytest.mark.full
def test_broken_module_ends_all_tests_as_in_the_command_of_a_data_set(tmp_path: Path) -> None:
    """pytest runs no test when a test module cannot be imported; tasks without a command keep the others."""
    other = {
        "other.py": "ANSWER = 41\n",
        "tests/test_other.py": "from other import ANSWER\n\n\ndef test_x():\n    assert ANSWER\n",
    }
    task, patches = example(tmp_path, other)
    base = prepare(task, tmp_path / "workspaces")
    broken = {"broken": patch_of(base, tmp_path, {"stats.py": FIXED, "other.py": "no Python\n"})}
    passed: dict[str, set[str]] = {}
    for parser in ("pytest", "parse_log_pytest"):
        named = (*NAMED["pass_to_pass"], "tests/test_other.py::test_x")
        checked = with_checks(task, gold_patch=patches["gold"], pass_to_pass=named, parser=parser)
        (verdict,) = grade(checked, broken, tmp_path).values()
        assert isinstance(verdict, Verdict)
        passed[parser] = {test for test, status in verdict.tests.items() if status == "passed"}
    assert passed == {"pytest": {*NAMED["fail_to_pass"], *NAMED["pass_to_pass"]}, "parse_log_pytest": set()}


@pytest.mark.full
def test_patch_that_ends_the_run_fails(tmp_path: Path) -> None:
    task, patches = example(tmp_path)
    found = grade(task, patches, tmp_path)
    assert {name: isinstance(each, Verdict) and each.resolved for name, each in found.items()} == {
        "gold": True,
        "wrong": False,
        "ends": False,
    }
    assert not any(isinstance(each, GraderError) for each in found.values())


@pytest.mark.parametrize(
    ("files", "command"),
    [
        ({"pytest.ini": "[pytest]\naddopts = --of-a-plugin\n"}, ()),
        pytest.param({}, ("--of-a-plugin",), marks=pytest.mark.full),
    ],
    ids=["of the repository", "of the task"],
)
def test_option_of_a_missing_plugin_is_no_failure(
    files: dict[str, str], command: tuple[str, ...], tmp_path: Path
) -> None:
    task, patches = example(tmp_path, files, command=command)
    for name, found in grade(task, patches, tmp_path).items():
        assert isinstance(found, GraderError), (name, found)
        assert "with the reference patch either" in str(found)
        assert "unrecognized arguments: --of-a-plugin" in str(found)


@pytest.mark.full
def test_collection_that_ends_before_the_first_test_is_no_failure(tmp_path: Path) -> None:
    task, patches = example(tmp_path, {"conftest.py": "import a_module_that_is_not_installed\n"})
    for name, found in grade(task, patches, tmp_path).items():
        assert isinstance(found, GraderError), (name, found)
        assert "No module named 'a_module_that_is_not_installed'" in str(found)


def test_collection_that_ends_because_of_the_patch_fails(tmp_path: Path) -> None:
    """The reference patch adds the name that the tests' own configuration imports."""
    conftest = {"conftest.py": "from stats import more\n"}
    task = local_task(tmp_path, {**FILES, **conftest}, **NAMED, gold_patch="")
    base = prepare(task, tmp_path / "workspaces")
    gold = patch_of(base, tmp_path, {"stats.py": FIXED + "\n\nmore = 1\n"})
    patches = {"gold": gold, "wrong": patch_of(base, tmp_path, {"stats.py": FIXED}), "empty": ""}
    found = grade(with_checks(task, gold_patch=gold), patches, tmp_path)
    resolved = {name: isinstance(each, GraderError) or each.resolved for name, each in found.items()}
    assert resolved == {"gold": True, "wrong": False, "empty": False}, found


class Counting:
    """A real provider that counts its sandboxes."""

    def __init__(self, inner: Provider) -> None:
        self.inner, self.started = inner, 0

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started += 1
        return await self.inner.start(spec)


@pytest.mark.full
def test_reference_patch_runs_once_for_all_patches_of_a_task(tmp_path: Path) -> None:
    task, patches = example(tmp_path)
    other = patches["ends"].replace("(0)", "(1)")

    async def scenario() -> int:
        async with make_provider(SandboxSettings()) as inner:
            provider = Counting(inner)
            grader = Grader(provider, GradingSettings(controls=0), cache=tmp_path / "workspaces")  # type: ignore[arg-type]
            for patch in (patches["ends"], other, patches["wrong"]):
                assert not (await grader.grade(task, patch)).resolved
            return provider.started

    assert asyncio.run(scenario()) == 4


# --- crashes of Hone's own code


@pytest.fixture
def broken_runner(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[None]:
    """Append a line to a file of the runner."""
    file, line = request.param
    folder = tmp_path / "in_sandbox"
    shutil.copytree(Path(grading_run.__file__).parent / "in_sandbox", folder)
    with (folder / file).open("a") as out:
        out.write(f"\n\n{line}\n")
    mounts = (Mount(source=folder, target=grading_run.RUNNER), *grading_run.RUNNER_MOUNTS[1:])
    with pytest.MonkeyPatch.context() as patching:
        patching.setattr(grading_run, "RUNNER_MOUNTS", mounts)
        yield


SHORT = ("in a comparison",)  # the others run in `make test-full`
CRASHES = {
    "before the gate": ("hone_names.py", "stored = lambda code, operations: 1 / 0", "division by zero"),
    "as the session starts": ("hone_session.py", "Plugin.__init__ = lambda *_: 1 / 0", "division by zero"),
    "in a hook": ("hone_session.py", "Plugin.is_defined = lambda *_: 1 / 0", "exit code 3"),
    "as a module is loaded": (
        "hone_names.py",
        "Namespace.check_kind = lambda self: 1 / (self.module.__name__ == 'hone_self_test')",
        "division by zero",
    ),
    "in a comparison": (
        "hone_integrity.py",
        "_own_equality = lambda cls: 1 / (cls is str)",
        "ZeroDivisionError at hone_integrity.py",
    ),
    "in the parent": ("hone_tally.py", "Tally.finished = lambda *_: 1 / 0", "without a report"),
}  # fmt: skip


@pytest.mark.parametrize(
    ("broken_runner", "said"),
    [
        pytest.param((file, line), said, id=name, marks=() if name in SHORT else pytest.mark.full)
        for name, (file, line, said) in CRASHES.items()
    ],
    indirect=["broken_runner"],
)
@pytest.mark.usefixtures("broken_runner")
def test_crash_of_the_runner_is_no_failure(said: str, tmp_path: Path) -> None:
    task, patches = example(tmp_path)
    for name in ("gold", "wrong"):
        (found,) = grade(task, {name: patches[name]}, tmp_path).values()
        assert isinstance(found, GraderError), (name, found)
        assert said in str(found)


RAISING = {
    "in a comparison": """
class Nameless(type):
    @property
    def __name__(cls):
        raise MemoryError


class Odd(metaclass=Nameless):
    def __eq__(self, other):
        return True


def add(a, b):
    return Odd()
""",
    "in a hook": """
import _pytest.python

import pytest


def add(a, b):
    _pytest.python.Function.nodeid = property(lambda self: 1 / 0)
    return a + b
""",
    "as a module is loaded": """
import sys


class Module(type(sys)):
    @property
    def __dict__(self):
        raise OSError


sys._getframe(1)
for name, module in list(sys.modules.items()):
    if name.endswith("test_stats"):
        module.__class__ = Module


def add(a, b):
    return a + b
""",
    "on the result channel": """
import os


def add(a, b):
    os.closerange(3, 64)
    return a + b
""",
}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=() if name in SHORT else pytest.mark.full) for name in RAISING]
)
def test_patch_that_makes_the_runner_raise_fails(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read_no_patch(monkeypatch)
    task, patches = example(tmp_path)
    base = prepare(task, tmp_path / "workspaces")
    patches = {"raising": patch_of(base, tmp_path, {"stats.py": RAISING[name]})}
    (found,) = grade(task, patches, tmp_path).values()
    assert isinstance(found, Verdict), found
    assert not found.resolved


# --- interpreters and versions that cannot be


def test_old_python_is_refused_by_its_version(tmp_path: Path) -> None:
    python = find_python("2.7")
    if python is None:
        pytest.skip("there is no Python 2.7 on this machine")
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / "pyvenv.cfg").touch()
    (venv / "bin" / "python").symlink_to(python)
    task, patches = example(tmp_path)
    (found,) = grade(task, {"gold": patches["gold"]}, tmp_path, venv).values()
    assert isinstance(found, GraderError)
    assert "it is Python 2.7, and the oldest that it supports is 3.6" in str(found)


@pytest.mark.full
def test_old_pytest_is_refused_by_its_version(tmp_path: Path) -> None:
    venv = shared_environment("3.6", "pytest==3.2.5", "attrs==17.4.0")
    task, patches = example(tmp_path)
    (found,) = grade(task, {"gold": patches["gold"]}, tmp_path, venv).values()
    assert isinstance(found, GraderError)
    assert "pytest is 3.2.5, but 3.3 or later is required" in str(found)
