"""Grading in real sandboxes: honest suites, infrastructure failures, the grader's cache."""

from __future__ import annotations

import asyncio
import dataclasses
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import (
    ExecResult,
    Health,
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxSpec,
    make_provider,
)
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Commit, Environment, Task, TestStatus, Verdict
from tests.environment.scripted import ScriptedProvider
from tests.grading.example import BUGGY, FIXED, make_task, patch_of

pytestmark = pytest.mark.sandbox

SUITE = """
import unittest

import pytest

from .helper import three
from stats import add


@pytest.fixture
def one(shared):
    return shared - 1


def test_fixture(one, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr("builtins.abs", lambda x: 7)
    assert abs(1) == 7
    print("seen")
    assert capsys.readouterr().out == "seen\\n"
    assert add(one, 2) == three == pytest.approx(3.0)


@pytest.mark.parametrize("a, b", [(1, 2), ("x", "y")], ids=["1-2", "x y::z"])
def test_parameters(a, b):
    add(a, b)


class TestClass:
    def test_method(self):
        assert {"sum": [add(1, 1)]} == {"sum": [2]}


class Case(unittest.TestCase):
    def setUp(self):
        self.value = 1

    def test_case(self):
        for i in range(2):
            with self.subTest(i=i):
                self.assertEqual(add(self.value, i), 1 + i)


@pytest.mark.xfail
def test_known():
    assert add(1, 1) == 5


@pytest.mark.skip
def test_skipped():
    pass


def test_broken_setup(missing_fixture):
    pass
"""
FAIL_TO_PASS = ("test_fixture", "test_parameters[x y::z]", "TestClass::test_method", "Case::test_case")
OTHERS = ("test_parameters[1-2]", "test_known")


def _suite_task() -> Task:
    """Hidden tests in a package of their own, with a helper and a conftest of the base commit."""
    task = make_task(
        fail_to_pass=tuple(f"suite/test_all.py::{name}" for name in FAIL_TO_PASS),
        pass_to_pass=tuple(f"suite/test_all.py::{name}" for name in OTHERS),
        test_files={"suite/test_all.py": SUITE},
    )
    files = {
        "conftest.py": "import pytest\n\n@pytest.fixture(scope='session')\ndef shared():\n    return 2\n",
        "suite/__init__.py": "",
        "suite/helper.py": "three = 3\n",
        "pytest.ini": "[pytest]\naddopts = -p no:python\n",
    }
    history = (*task.environment.history, Commit(message="Suite", files=files))
    return dataclasses.replace(task, environment=Environment(image="host", history=history))


def _graded(tasks_and_patches: list[tuple[Task, str]], cache: Path) -> list[Verdict]:
    async def scenario() -> list[Verdict]:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, GradingSettings(), cache=cache)
            return await asyncio.gather(*(grader.grade(t, p) for t, p in tasks_and_patches))

    return asyncio.run(scenario())


def test_fixtures_parameters_classes_and_marks_count_as_in_pytest(tmp_path: Path) -> None:
    task = _suite_task()
    workspace = prepare(task, tmp_path / "workspaces")
    fix = patch_of(workspace, tmp_path, {"stats.py": FIXED})
    more = tuple(
        f"suite/test_all.py::{name}" for name in ("test_skipped", "test_broken_setup", "test_absent")
    )
    stricter = dataclasses.replace(task, checks=dataclasses.replace(task.checks, pass_to_pass=more))
    fixed, buggy, strict = _graded([(task, fix), (task, ""), (stricter, fix)], workspace.parent)
    assert fixed.resolved, fixed.log
    assert fixed.tests["suite/test_all.py::test_known"] is TestStatus.XFAILED
    assert not buggy.resolved
    assert buggy.score == 0.0
    assert buggy.tests["suite/test_all.py::test_parameters[1-2]"] is TestStatus.PASSED
    assert not strict.resolved
    assert [strict.tests[test] for test in more] == ["skipped", "error", "missing"]
    assert (fixed.tampered, buggy.tampered, strict.tampered) == (None, None, None)


def test_half_a_fix_scores_in_part(tmp_path: Path) -> None:
    task = make_task()
    workspace = prepare(task, tmp_path / "workspaces")
    half = BUGGY.replace("return a - b", "return 3 if (a, b) == (1, 2) else 0")
    wait = "import time\n    while (a, b) != (1, 2): time.sleep(1)\n    return 3"
    loop = BUGGY.replace("return a - b", wait)
    slow = make_task(timeout_s=10.0)  # within which the first test runs, however busy the machine is
    patches = [patch_of(workspace, tmp_path, {"stats.py": text}) for text in (half, loop)]
    partial, endless = _graded([(task, patches[0]), (slow, patches[1])], workspace.parent)
    assert partial.score == pytest.approx(2 / 3)
    assert not partial.resolved
    assert "assert add(1, 0) == 1" in partial.log
    assert endless.tests["tests/test_hidden.py::test_add"] is TestStatus.PASSED
    assert not endless.resolved
    (stopped,) = re.findall(r"stopped after (\d+) s", endless.log)
    assert int(stopped) >= 10  # it tells how long they ran, until the last of them was dead


class Losing:
    """A real provider whose first sandboxes die when they get to run `program`."""

    def __init__(self, inner: Provider, program: str, deaths: int) -> None:
        self.inner, self.program, self.deaths, self.started = inner, program, deaths, 0
        self.second = asyncio.Event()

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self.started += 1
        if self.started == 2:
            self.second.set()
        sandbox = await self.inner.start(spec)
        run = sandbox.exec

        async def die(command: str | Sequence[str], **options: Any) -> ExecResult:
            program = "bash" if isinstance(command, str) else command[0]
            if program == self.program and self.deaths > 0:
                self.deaths -= 1
                await sandbox.close()
            return await run(command, **options)

        sandbox.exec = die  # type: ignore[method-assign]
        return sandbox

    async def health(self) -> Health:
        return await self.inner.health()

    async def reconcile(self) -> int:
        return await self.inner.reconcile()

    async def __aenter__(self) -> Provider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


def test_second_lost_sandbox_is_a_failed_verdict(tmp_path: Path) -> None:
    task = make_task()
    workspace = prepare(task, tmp_path / "workspaces")
    fix = patch_of(workspace, tmp_path, {"stats.py": FIXED})

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:

            async def graded(program: str, deaths: int) -> Verdict:
                losing = Losing(provider, program, deaths)
                grader = Grader(losing, GradingSettings(), cache=workspace.parent)
                return await grader.grade_uncached(task, fix)

            for program in ("bash", "python3"):  # while the patch is applied; while the tests run
                assert (await graded(program, 1)).resolved
                twice = await graded(program, 2)
                assert not twice.resolved
                assert "twice" in twice.log

    asyncio.run(scenario())


def test_unavailable_provider_gives_no_verdict_and_is_retried(tmp_path: Path) -> None:
    class Full(ScriptedProvider):
        refused = 0

        async def start(self, spec: SandboxSpec) -> Sandbox:
            self.refused += 1
            raise ProviderUnavailable("every sandbox is in use", retryable=True)

    async def scenario() -> int:
        provider = Full()
        grader = Grader(provider, GradingSettings(), cache=tmp_path / "workspaces")
        for _ in range(2):
            with pytest.raises(GraderError, match="no sandbox to grade in: every sandbox is in use"):
                await grader.grade(make_task(), "")
        return provider.refused

    assert asyncio.run(scenario()) == 2


def test_equal_patches_are_graded_once(
    tmp_path: Path,
) -> None:
    task = make_task()
    workspace = prepare(task, tmp_path / "workspaces")
    fix = patch_of(workspace, tmp_path, {"stats.py": FIXED})

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as inner:
            provider = Losing(inner, "", 0)
            grader = Grader(provider, GradingSettings(), cache=tmp_path / "workspaces")
            verdicts = await asyncio.gather(*(grader.grade(task, fix) for _ in range(5)))
            renamed = await grader.grade(dataclasses.replace(task, id="other"), fix)
            assert all(verdict.resolved for verdict in (*verdicts, renamed))
            assert provider.started == 1

            first = asyncio.create_task(grader.grade(task, ""))
            second = asyncio.create_task(grader.grade(task, ""))
            await provider.second.wait()
            first.cancel()
            assert not (await second).resolved
            assert first.cancelled()
            assert provider.started == 3

    asyncio.run(scenario())
