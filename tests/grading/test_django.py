"""Django's runner under the trusted session: ten projects, two versions of Django, patches good and bad."""

from __future__ import annotations

import asyncio
import dataclasses
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from hone.curate.controls import find_controls
from hone.grading import Grader, GradingSettings
from hone.grading.run import Edition
from hone.grading.titles import official_names
from hone.grading.verdict import words_of
from hone.sandbox import Limits, Provider, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Checks, Commit, Environment, Task, Verdict
from tests.grading.django_projects import HEAD, PROJECTS, RIGHT, Project
from tests.grading.example import patch_of
from tests.services.image import unpack_base

pytestmark = [pytest.mark.sandbox, pytest.mark.full, pytest.mark.timeout(1200)]
VERSIONS = ("3.2.25", "5.2.8")
TESTS = "shop/tests/test_app.py"
SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
cat > {file} <<'EOF_TESTS'
{tests}EOF_TESTS
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
"""
CONTROLLED = ("models", "views", "forms")  # projects for whose tests controls are looked for
# unbuffered: a log would otherwise mix the output of migrations into the line of the first test
COMMAND = "python -u manage.py test --verbosity 2 --parallel 1 shop"


@pytest.fixture(scope="module", params=VERSIONS)
def image(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An image with Python and one version of Django."""
    root = tmp_path_factory.mktemp("django")
    unpack_base(root)
    site = next(root.glob("usr/**/_pytest")).parent / "site-packages"
    command = [sys.executable, "-m", "pip", "install", "-q", "--target", site, f"django=={request.param}"]
    subprocess.run(command, check=True)
    return f"rootfs:{root}"


def make_task(project: Project, image: str, command: str = COMMAND) -> Task:
    history = Commit(message="Shop", files={**RIGHT, project.file: project.text()})
    return Task(
        id=f"django-{project.name}",
        problem="",
        environment=Environment(image=image, history=(history,)),
        checks=Checks(
            fail_to_pass=("unknown",),
            pass_to_pass=(),
            test_files={},
            gold_patch="",
            script=SCRIPT.format(file=TESTS, tests=HEAD + project.tests, command=command),
            parser="parse_log_django",
            timeout_s=200,
        ),
        source="tests",
    )


def patches_of(project: Project, task: Task, scratch: Path) -> dict[str, str]:
    files: dict[str, Mapping[str, str | None]] = {
        "gold": {project.file: project.text(0, 1)},
        "empty": {},
        "first half": {project.file: project.text(0)},
        "second half": {project.file: project.text(1)},
        "broken": {project.file: project.text(0, 1) + "\ndef broken(:\n"},
        "tests": {TESTS: "", "shop/tests/__init__.py": "raise SystemExit(0)\n", "manage.py": "print('ok')\n"},
    }
    base = prepare(task, scratch / "workspaces")
    return {name: patch_of(base, scratch, changes) for name, changes in files.items()}


async def statuses(grader: Grader, task: Task, patch: str) -> dict[str, str]:
    """Return the words of all tests of one run, by the names of the task's parser."""
    (run,) = await grader.run_edited(task, patch, lambda _: [Edition()])
    assert run.tampered is None
    words = words_of(run.statuses)
    if run.by_log:
        return words
    return dict(official_names(words, task.checks.parser, suite=run.suite, titles=run.titles))


async def grade_project(provider: Provider, project: Project, image: str, scratch: Path) -> None:
    limits = Limits(memory_mib=1024)
    grader = Grader(provider, GradingSettings(), cache=scratch / "workspaces", limits=limits)
    task, by_log = make_task(project, image), make_task(project, image, f"{COMMAND} || true")
    patches = patches_of(project, task, scratch)
    found: dict[str, dict[str, str]] = {}
    for name in ("gold", "empty", "first half"):
        found[name] = await statuses(grader, task, patches[name])
        # as SWE-bench does it: the command runs plainly, and the harness's parser reads its log
        assert found[name] == await statuses(grader, by_log, patches[name]), name
    passing = [test for test, word in found["gold"].items() if word == "PASSED"]
    failing = [test for test in passing if found["empty"].get(test) != "PASSED"]
    assert len(failing) == 2
    assert set(passing) > set(failing)
    checks = dataclasses.replace(
        task.checks,
        fail_to_pass=tuple(failing),
        pass_to_pass=tuple(test for test in passing if test not in failing),
        gold_patch=patches["gold"],
    )
    task = dataclasses.replace(task, checks=checks)
    verdicts: dict[str, Verdict] = {}
    for name, patch in patches.items():
        verdicts[name] = await grader.grade(task, patch)
    resolved = [name for name, verdict in verdicts.items() if verdict.resolved]
    assert resolved == ["gold"], {name: verdict.log for name, verdict in verdicts.items()}
    assert not any(verdict.tampered for verdict in verdicts.values())
    if project.name in CONTROLLED:
        await check_controls(provider, task, grader)


async def check_controls(provider: Provider, task: Task, grader: Grader) -> None:
    """Check that every test has a control, and that they fail in a grading of the fix."""
    checks = task.checks
    controls = await find_controls(task, grader, repeats=2)
    named = set(checks.named_tests)
    assert len({test for control in controls for test in control.tests}) == len(named), controls
    checked = dataclasses.replace(task, checks=dataclasses.replace(checks, controls=controls))
    everything = Grader(provider, GradingSettings(controls=1.0), cache=grader._cache, limits=grader._limits)
    verdict = await everything.grade(checked, checks.gold_patch)
    assert (verdict.resolved, verdict.tampered, verdict.controls.failed) == (True, None, len(named))


@pytest.mark.parametrize("project", PROJECTS, ids=lambda project: project.name)
def test_django_project_is_graded_as_by_the_harness(project: Project, image: str, tmp_path: Path) -> None:
    async def run() -> None:
        async with make_provider(SandboxSettings()) as provider:
            await grade_project(provider, project, image, tmp_path)

    asyncio.run(run())
