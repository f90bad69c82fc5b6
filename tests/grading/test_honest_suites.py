"""What test suites of real projects do, which is no tampering."""

from __future__ import annotations

import asyncio
import dataclasses
from pathlib import Path

import pytest

from hone.grading import Grader, GradingSettings
from hone.sandbox import make_provider
from hone.sandbox.settings import SandboxSettings
from hone.types import Commit
from tests.grading.example import FIXED, make_task

pytestmark = pytest.mark.sandbox

UNLOADS = """
import sys

import pytest


@pytest.fixture(autouse=True)
def unload():
    yield
    sys.modules.pop("tests.apps.admin")


def test_unloaded():
    import tests.apps.admin
"""


@pytest.mark.parametrize(
    "files",
    [
        {"tests/programs/__main__.py": "print('a program among the tests')\n"},
        {"tests/apps/__init__.py": "", "tests/apps/admin.py": "", "tests/test_unloads.py": UNLOADS},
    ],
    ids=["a program among the tests", "a test unloads a submodule"],
)
def test_honest_suite_is_no_tampering(files: dict[str, str], tmp_path: Path):
    task = make_task()
    environment = task.environment
    history = (*environment.history, Commit(message="More tests", files={**files, "stats.py": FIXED}))
    tests = tuple(f"{path}::test_unloaded" for path in files if path.endswith("unloads.py"))
    checks = dataclasses.replace(task.checks, pass_to_pass=(*task.checks.pass_to_pass, *tests))
    task = dataclasses.replace(
        task, environment=dataclasses.replace(environment, history=history), checks=checks
    )

    async def scenario() -> None:
        async with make_provider(SandboxSettings(state_dir=tmp_path / "state")) as provider:
            grader = Grader(provider, GradingSettings(), cache=tmp_path / "workspaces")
            verdict = await grader.grade_uncached(task, "")
            assert (verdict.resolved, verdict.tampered) == (True, None), verdict.log

    asyncio.run(scenario())
