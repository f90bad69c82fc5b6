"""Rows of each data set in an image of its layout: from the row to an agent to a graded rollout."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest

from hone.agents.scripted import noop, oracle
from hone.environment import prepare_workspace
from hone.grading import Grader, GradingSettings
from hone.outcomes import Outcome
from hone.rollout.episode import Episode, run_episode
from hone.sandbox import make_provider
from hone.sandbox.images import ImageStore
from hone.sandbox.settings import SandboxSettings
from hone.tasks.files import import_rows
from hone.tasks.gradeability import Gradeability
from hone.types import Task, Trajectory
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH, git
from tests.rollout.real import open_context, script
from tests.services.conda import write_layer, write_testbed
from tests.services.image import base_archive, write_archive

pytestmark = [pytest.mark.sandbox, pytest.mark.full]

PYTHON = "3.9"
FIXED = "def add(a, b):\n    return a + b\n"
NEW_TEST = OLD_TEST + "\n\ndef test_add():\n    assert add(1, 2) == 3\n"
BUG = """diff --git a/calc/__init__.py b/calc/__init__.py
--- a/calc/__init__.py
+++ b/calc/__init__.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a + b
+    return a - b
"""
TESTS = {
    "FAIL_TO_PASS": ["tests/test_calc.py::test_add"],
    "PASS_TO_PASS": ["tests/test_calc.py::test_nothing"],
}
SCRIPT = """#!/bin/bash
set -uxo pipefail
source /opt/miniconda3/bin/activate
conda activate testbed
cd /testbed
git checkout {base} tests/test_calc.py
git apply -v - <<'EOF_114329324912'
{patch}EOF_114329324912
: '>>>>> Start Test Output'
pytest -rA tests/test_calc.py
: '>>>>> End Test Output'
git checkout {base} tests/test_calc.py
"""
# as R2E-Gym's harness has it
STATEMENT = "[ISSUE]\nadd subtracts\n[/ISSUE]"

Row = dict[str, Any]


def repository(folder: Path, files: dict[str, str]) -> str:
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Base")
    return git(folder, "rev-parse", "HEAD")


def swe_bench_4(testbed: Path) -> Row:
    """A repository of which the harness's package knows how it is installed and tested."""
    base = repository(testbed, {"calc/__init__.py": BUGGY, "tests/test_calc.py": OLD_TEST})
    return {
        "instance_id": "pallets__flask-1",
        "repo": "pallets/flask",
        "version": "2.0",
        "base_commit": base,
        "problem_statement": "add subtracts",
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "FAIL_TO_PASS": json.dumps(TESTS["FAIL_TO_PASS"]),
        "PASS_TO_PASS": json.dumps(TESTS["PASS_TO_PASS"]),
    }


def swe_bench_5(testbed: Path) -> Row:
    row = swe_bench_4(testbed)
    return {
        **row,
        "instance_id": "me__calc-2",
        "repo": "me/calc",
        "image": "swebench/sweb.eval.x86_64.me_1776_calc-2:latest",
        "eval_script": SCRIPT.format(base=row["base_commit"], patch=TEST_PATCH),
        "log_parser": "parse_log_pytest",
        "eval_type": "pass_and_fail",
    }


def swe_gym(testbed: Path) -> Row:
    return {
        **swe_bench_4(testbed),
        "instance_id": "getmoto__moto-3",
        "repo": "getmoto/moto",
        "version": "4.1",
    }


def swe_smith(testbed: Path) -> Row:
    """The image holds the tests, and the fixed code; the row's patch is the bug."""
    repository(testbed, {"calc/__init__.py": FIXED, "tests/test_calc.py": NEW_TEST})
    (testbed / "calc/__init__.py").write_text(BUGGY)
    git(testbed, "commit", "-qam", "Bug")
    return {
        "instance_id": "pallets__click.fde47b4b.x__1",
        "repo": "swesmith/pallets__click.fde47b4b",
        "image_name": "jyangballin/swesmith.x86_64.pallets_1776_click.fde47b4b",
        "problem_statement": "add subtracts",
        "patch": BUG,
        **TESTS,
    }


def r2e_gym(testbed: Path) -> Row:
    """Tests lie outside the repository, which has a Python of its own in .venv."""
    repository(testbed, {"calc/__init__.py": BUGGY, ".gitignore": ".venv\n"})
    (testbed / ".venv" / "bin").mkdir(parents=True)
    (testbed / ".venv" / "bin" / "python").symlink_to("/opt/miniconda3/envs/testbed/bin/python")
    tests = testbed.parent / "r2e_tests"
    tests.mkdir()
    (tests / "test_1.py").write_text(NEW_TEST)
    (testbed / "run_tests.sh").write_text("pytest r2e_tests\n")
    git(testbed, "add", ".")
    git(testbed, "commit", "-qm", "Tools")
    commit = git(testbed, "rev-parse", "HEAD")
    names = ("test_add", "test_nothing")
    log = "\n".join(
        (
            "=== short test summary info ===",
            "PASSED r2e_tests/test_1.py::test_nothing",
            "FAILED r2e_tests/test_1.py::test_add",
        )
    )
    return {
        "repo_name": "tornado",
        "docker_image": "namanjain12/tornado_final:abc",
        "commit_hash": commit,
        "problem_statement": STATEMENT,
        "expected_output_json": json.dumps(dict.fromkeys(names, "PASSED")),
        "execution_result_content": json.dumps(
            {"test_file_names": ["test_1.py"], "old_commit_res_stdout": log}
        ),
        "parsed_commit_content": json.dumps(_parsed_fix()),
    }


def _parsed_fix() -> Row:
    lines = [
        {"type": "context", "content": "def add(a, b):"},
        {"type": "deleted", "content": "    return a - b"},
        {"type": "added", "content": "    return a + b"},
    ]
    place = {"start": 1, "length": 2}
    hunk = {"descriptor": {"old_range": place, "new_range": place}, "line_group": {"all_lines": lines}}
    file = {
        "header": {"file": {"path": "calc/__init__.py"}},
        "minus_file": {"path": "a/calc/__init__.py"},
        "plus_file": {"path": "b/calc/__init__.py"},
        "hunks": [hunk],
    }
    return {"file_diffs": [file]}


FAMILIES = (swe_bench_4, swe_bench_5, swe_gym, swe_smith, r2e_gym)


@pytest.fixture(scope="module")
def testbed_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("testbed") / "testbed.tar"
    write_testbed(target, PYTHON, "pytest==7.4.4")
    return target


@pytest.fixture(scope="module")
def base_layer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("base") / "layer.tar"
    with tarfile.open(base_archive()) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        layer = archive.extractfile(json.load(manifest)[0]["Layers"][0])
        assert layer is not None
        target.write_bytes(layer.read())
    return target


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> SandboxSettings:
    folder = tmp_path_factory.mktemp("cache")
    return SandboxSettings(cache_dir=folder, state_dir=folder / "state")


def import_image(task: Task, layers: list[Path], settings: SandboxSettings, folder: Path) -> None:
    """Store the image under the name that the row gives it."""
    name = task.environment.image.removeprefix("docker://")
    archive = folder / "image.tar"
    write_archive(archive, name, layers, {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]})
    assert settings.cache_dir is not None
    store = ImageStore(settings.cache_dir / "images", budget_gib=10)
    asyncio.run(store.import_(str(archive), name=name))


def roll_out(
    task: Task, settings: SandboxSettings, root: Path, commands: Callable[[Task, str], Iterable[str]]
) -> Trajectory:
    async def scenario() -> Trajectory:
        async with make_provider(settings) as provider, open_context(root, script(commands)) as context:
            grader = Grader(provider, GradingSettings(), cache=root / "workspaces")
            context = dataclasses.replace(context, provider=provider, grader=grader)
            workspace = await prepare_workspace(task, provider, root / "workspaces")
            episode = Episode(task=task, rollout_id="r", group_id="g", workspace=workspace, seed=0)
            return await run_episode(episode, context)

    return asyncio.run(scenario())


@pytest.mark.parametrize("family", FAMILIES, ids=lambda family: family.__name__)
def test_agent_in_the_image_is_graded(
    family: Callable[[Path], Row],
    testbed_layer: Path,
    base_layer: Path,
    settings: SandboxSettings,
    tmp_path: Path,
):
    root = tmp_path / "image"
    (root / "testbed").mkdir(parents=True)
    row = family(root / "testbed")
    (task,) = import_rows([row]).tasks
    own_layer = tmp_path / "own.tar"
    write_layer(own_layer, root)
    import_image(task, [base_layer, testbed_layer, own_layer], settings, tmp_path)

    fixed = roll_out(task, settings, tmp_path / "fixed", oracle)
    assert (fixed.outcome, fixed.error) == (Outcome.RESOLVED, None), (fixed.error, fixed.verdict)
    assert fixed.verdict is not None
    assert set(fixed.verdict.tests.values()) == {"passed"}
    useless = roll_out(task, settings, tmp_path / "useless", lambda *_: ["echo '# note' >> calc/__init__.py"])
    assert useless.outcome is Outcome.UNRESOLVED
    assert roll_out(task, settings, tmp_path / "none", noop).outcome is Outcome.NO_PATCH


def test_every_family_needs_its_image(tmp_path: Path):
    from hone.grading.assess import assess

    for family in FAMILIES:
        folder = tmp_path / family.__name__ / "testbed"
        folder.mkdir(parents=True)
        (task,) = import_rows([family(folder)]).tasks
        assert assess(task).status is Gradeability.NEEDS_IMAGE
