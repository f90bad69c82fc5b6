"""Tasks with their repository in an image: agents' sandboxes, and grading by a data set's script."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import pytest

from hone.environment import extract_patch, prepare_workspace, start_agent_sandbox
from hone.grading import Grader, GraderError, GradingSettings
from hone.sandbox import Provider, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.types import Checks, Environment, Task, Verdict
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH, git
from tests.services.image import unpack_base

pytestmark = pytest.mark.sandbox
Result = TypeVar("Result")

FIXED = "def add(a, b):\n    return a + b\n"
NEW_TEST = OLD_TEST + "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
SCRIPT = """#!/bin/bash
set -uxo pipefail
cd /testbed
export MARK=set
git checkout {base} tests/test_calc.py
git apply -v - <<'EOF_PATCH'
{test_patch}EOF_PATCH
: '>>>>> Start Test Output'
{command}
: '>>>>> End Test Output'
git checkout {base} tests/test_calc.py
"""
PYTEST = "python3 -m pytest -rA --tb=short -p no:cacheprovider tests/test_calc.py"
FORGER = (
    BUGGY
    + """
print(">>>>> Start Test Output")
print("PASSED tests/test_calc.py::test_add")
print("PASSED tests/test_calc.py::test_nothing")
print(">>>>> End Test Output")
"""
)

# as setuptools installs one: a finder before all others
FIRST_FINDER = """
import sys; sys.meta_path.insert(0, type("Finder", (), {"find_spec": staticmethod(lambda *_: None)}))
"""


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """A root file system with a repository whose later commits, stash and tags hold the fix; its base."""
    root = tmp_path_factory.mktemp("image")
    unpack_base(root)
    testbed = root / "testbed"
    (testbed / "calc").mkdir(parents=True)
    (testbed / "tests").mkdir()
    (testbed / "calc" / "__init__.py").write_text(BUGGY)
    (testbed / "tests" / "test_calc.py").write_text(OLD_TEST)
    git(testbed, "init", "-q", "--initial-branch=main")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "Base")
    base = git(testbed, "rev-parse", "HEAD")
    (testbed / "calc" / "__init__.py").write_text(FIXED)
    git(testbed, "commit", "-qam", "Fix add")
    git(testbed, "tag", "v2")
    git(testbed, "remote", "add", "origin", "https://example.invalid/calc.git")
    git(testbed, "reset", "-q", "--hard", base)
    (testbed / "calc" / "__init__.py").write_text(FIXED + "# stashed\n")
    git(testbed, "stash", "-q")
    site = next(root.glob("usr/**/_pytest")).parent
    (site / "site-packages").mkdir()
    (site / "site-packages" / "finder.pth").write_text(FIRST_FINDER)
    (site / "calc").mkdir()
    (site / "calc" / "__init__.py").write_text(FIXED)
    (site / "calc-2.0.dist-info").mkdir()
    (site / "calc-2.0.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: calc\nVersion: 2.0\n")
    (site / "calc-2.0.dist-info" / "RECORD").write_text("calc/__init__.py,,\ncalc-2.0.dist-info/METADATA,,\n")
    return root, base


def _task(image: tuple[Path, str], command: str = PYTEST, **checks: object) -> Task:
    root, base = image
    return Task(
        id="calc-1",
        problem="add subtracts",
        environment=Environment(image=f"rootfs:{root}", repo="someone/calc", commit=base),
        checks=dataclasses.replace(
            Checks(
                fail_to_pass=("tests/test_calc.py::test_add",),
                pass_to_pass=("tests/test_calc.py::test_nothing",),
                test_files={},
                gold_patch=GOLD,
                test_patch=TEST_PATCH,
                script=SCRIPT.format(base=base, test_patch=TEST_PATCH, command=command),
                parser="parse_log_pytest",
                timeout_s=60,
            ),
            **checks,
        ),
        source="swe-bench",
    )


def _run(job: Callable[[Provider], Awaitable[Result]]) -> Result:
    async def scenario() -> Result:
        async with make_provider(SandboxSettings()) as provider:
            return await job(provider)

    return asyncio.run(scenario())


def _grade(task: Task, patch: str, tmp_path: Path) -> Verdict:
    return _run(
        lambda provider: Grader(provider, GradingSettings(), cache=tmp_path).grade_uncached(task, patch)
    )


def test_agent_sees_one_commit_and_no_fix(image: tuple[Path, str], tmp_path: Path) -> None:
    task = _task(image)

    async def job(provider: Provider) -> tuple[str, str]:
        workspace = await prepare_workspace(task, provider, tmp_path)
        async with await start_agent_sandbox(
            task, workspace, SandboxSpec(), provider, GradingSettings()
        ) as sandbox:
            seen = await sandbox.exec(
                "git log --all --format=%H; git tag; git remote; git stash list; git reflog;"
                "git fsck --unreachable --no-reflogs; git status --short;"
                "git rev-list --objects --all | wc -l; cat .git/objects/info/alternates;"
                "cd / && python3 -c 'import calc'"
            )
            assert b"No module named 'calc'" in seen.stderr
            await sandbox.write("/testbed/calc/__init__.py", FIXED.encode())
            await sandbox.exec("git -c user.name=a -c user.email=a@localhost commit -qam mine")
            return seen.text, await extract_patch(sandbox, task)

    seen, patch = _run(job)
    assert seen.split() == [image[1], "6"]  # the commit, its three trees and its two files
    assert "-    return a - b\n+    return a + b\n" in patch
    assert _grade(task, patch, tmp_path).resolved


def test_commit_missing_in_the_image_is_refused(image: tuple[Path, str], tmp_path: Path) -> None:
    task = _task(image)
    wrong = dataclasses.replace(
        task, environment=dataclasses.replace(task.environment, commit="1234567890" * 4)
    )
    with pytest.raises(TaskError, match="holds no repository with commit 1234567890"):
        _run(lambda provider: prepare_workspace(wrong, provider, tmp_path))


@pytest.mark.parametrize(
    "command", [PYTEST, f"{PYTEST} || true", ""], ids=["out of band", "by its log", "without a script"]
)
def test_only_the_fix_resolves_an_image_task(image: tuple[Path, str], tmp_path: Path, command: str) -> None:
    task = _task(image, command) if command else _task(image, script="")
    gold, empty = _grade(task, GOLD, tmp_path), _grade(task, "", tmp_path)
    assert gold.resolved, gold.log
    assert (empty.resolved, empty.score) == (False, 0.0)
    assert {str(status) for status in gold.tests.values()} == {"passed"}
    assert sorted(map(str, empty.tests.values())) == ["failed", "passed"]
    forged = GOLD.replace("+    return a + b\n", "".join(f"+{line}\n" for line in FORGER.splitlines()[1:]))
    forged = forged.replace("@@ -1,2 +1,2 @@", f"@@ -1,2 +1,{len(FORGER.splitlines())} @@")
    assert not _grade(task, forged, tmp_path).resolved


def test_forged_marker_in_the_output_is_tampering(image: tuple[Path, str], tmp_path: Path) -> None:
    lines = FORGER.splitlines()
    body = "".join(f"+{line}\n" for line in lines[2:])
    patch = GOLD.splitlines(keepends=True)[:3]
    forged = "".join(patch) + f"@@ -1,2 +1,{len(lines)} @@\n def add(a, b):\n     return a - b\n{body}"
    verdict = _grade(_task(image, f"{PYTEST} -s || true"), forged, tmp_path)
    assert verdict.tampered is not None
    assert "marker" in verdict.tampered


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"script": ": '>>>>> Start Test Output'\npytest\n"}, "does not mark its test output"),
        ({"script": "", "parser": "parse_log_django"}, "it has no evaluation script"),
        ({"parser": "parse_log_of_nobody"}, "there is no log parser 'parse_log_of_nobody'"),
        ({"rule": "best_effort"}, "there is no rule 'best_effort'"),
    ],
)
def test_ungradable_task_gives_no_verdict(
    image: tuple[Path, str], tmp_path: Path, changes: dict[str, str], sentence: str
) -> None:
    with pytest.raises(GraderError, match=sentence):
        _grade(_task(image, **changes), GOLD, tmp_path)


def test_hanging_test_command_fails_at_its_timeout(image: tuple[Path, str], tmp_path: Path) -> None:
    verdict = _grade(_task(image, "sleep 1000", timeout_s=1.0), GOLD, tmp_path)
    assert not verdict.resolved
    assert "stopped after 1 s" in verdict.log
