"""Rows of each data set, and images of their layouts: conda's `testbed`, or R2E-Gym's `.venv`."""

from __future__ import annotations

import asyncio
import json
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hone.sandbox.images import ImageStore
from hone.tasks.files import import_rows
from hone.types import Task
from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH, git
from tests.services.conda import write_layer, write_testbed
from tests.services.image import base_archive, write_archive

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


def write_lower_layers(folder: Path, python: str) -> list[Path]:
    """Write the layers that all images share: programs, and the conda environment with `python`."""
    base, testbed = folder / "base.tar", folder / "testbed.tar"
    with tarfile.open(base_archive()) as archive:
        manifest = archive.extractfile("manifest.json")
        assert manifest is not None
        layer = archive.extractfile(json.load(manifest)[0]["Layers"][0])
        assert layer is not None
        base.write_bytes(layer.read())
    write_testbed(testbed, python, "pytest==7.4.4")
    return [base, testbed]


def import_family(
    family: Callable[[Path], Row], lower: list[Path], cache: Path, folder: Path
) -> tuple[Row, Task]:
    """Store an image of the family under the name that its row gives it; return the row and its task."""
    root = folder / "image"
    (root / "testbed").mkdir(parents=True)
    row = family(root / "testbed")
    (task,) = import_rows([row]).tasks
    own, archive = folder / "own.tar", folder / "image.tar"
    write_layer(own, root)
    name = task.environment.image.removeprefix("docker://")
    write_archive(archive, name, [*lower, own], {"Env": ["PATH=/usr/local/bin:/usr/bin:/bin"]})
    asyncio.run(ImageStore(cache / "images", budget_gib=10).import_(str(archive), name=name))
    return row, task
