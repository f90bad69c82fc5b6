"""Tasks of SWE-smith: their images hold sound code, and their rows the bug."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from hone.cli.import_report import assess_rows
from hone.environment import extract_patch, prepare_workspace, start_agent_sandbox
from hone.grading import Grader, GradingSettings
from hone.sandbox import SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.files import import_rows
from tests.grading.calc import BUGGY, git
from tests.grading.test_faulty_rows import place
from tests.services.image import unpack_base
from tests.tasks.faults import NEW_TEST, base_rows

pytestmark = [pytest.mark.full, pytest.mark.sandbox]


@pytest.mark.parametrize("code", [BUGGY.replace("-", "+"), BUGGY], ids=["sound image", "image with the bug"])
def test_agent_meets_the_bug_and_its_fix_resolves_the_task(code: str, tmp_path: Path) -> None:
    root = tmp_path / "image"
    root.mkdir()
    unpack_base(root)
    testbed = root / "testbed"
    for path, text in {
        "calc/__init__.py": code,
        "tests/__init__.py": "",
        "tests/test_new.py": NEW_TEST,
    }.items():
        (testbed / path).parent.mkdir(parents=True, exist_ok=True)
        (testbed / path).write_text(text)
    git(testbed, "init", "-q", "--initial-branch=main")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "Base")
    _, (task,) = assess_rows(import_rows([base_rows("0" * 40)["swe-smith"]]))
    task = place(task, root)
    settings = GradingSettings()

    async def scenario() -> None:
        async with make_provider(SandboxSettings()) as provider:
            grader = Grader(provider, settings, cache=tmp_path / "cache")
            workspace = await prepare_workspace(task, provider, tmp_path / "cache")
            async with await start_agent_sandbox(
                task, workspace, SandboxSpec(), provider, settings
            ) as sandbox:
                seen = await sandbox.exec(
                    "cat calc/__init__.py; git status --short; git log --oneline | wc -l"
                )
                assert seen.stdout.decode() == f"{BUGGY}1\n"
                untouched = await extract_patch(sandbox, task)
                await sandbox.exec("sed -i 's/a - b/a + b/' calc/__init__.py")
                patch = await extract_patch(sandbox, task)
            assert untouched == ""
            assert patch.splitlines()[-2:] == ["-    return a - b", "+    return a + b"]
            assert (await grader.grade_uncached(task, patch)).resolved
            assert (await grader.grade_uncached(task, task.checks.gold_patch)).resolved
            note = patch.replace("return a + b", "return a - b  # sound")
            assert not (await grader.grade_uncached(task, note)).resolved

    asyncio.run(scenario())
