"""Official specifications of harnesses, and the evaluation scripts made of them."""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from hone.tasks.diffs import reverse
from hone.tasks.errors import TaskError
from hone.tasks.files import import_rows, read_rows
from hone.tasks.formats import FORMATS, detect
from hone.tasks.formats.printed import printed_names
from hone.tasks.formats.swebench import seeded_bug
from hone.tasks.specifications import (
    ENVIRONMENT_FILE,
    REQUIREMENTS_FILE,
    evaluation_script,
    find_specification,
    image_name,
    test_directives,
)

PATCH = """diff --git a/tests/admin_views/test_nav.py b/tests/admin_views/test_nav.py
--- a/tests/admin_views/test_nav.py
+++ b/tests/admin_views/test_nav.py
@@ -1 +1 @@
-a = 1
+a = 2
diff --git a/tests/admin_views/new one.py b/tests/admin_views/new one.py
new file mode 100644
--- /dev/null
+++ b/tests/admin_views/new one.py
@@ -0,0 +1 @@
+END_OF_PATCH
diff --git a/tests/admin_views/data.json b/tests/admin_views/data.json
--- a/tests/admin_views/data.json
+++ b/tests/admin_views/data.json
@@ -1 +1 @@
-1
+2
"""
DJANGO: dict[str, Any] = {
    "instance_id": "django__django-1",
    "repo": "django/django",
    "version": "3.1",
    "base_commit": "abc",
    "problem_statement": "It is broken.",
    "test_patch": PATCH,
    "FAIL_TO_PASS": ["test_a (admin_views.test_nav.T)"],
    "PASS_TO_PASS": [],
}
SMITH: dict[str, Any] = {
    "instance_id": "pallets__click.fde47b4b.x__1",
    "repo": "swesmith/pallets__click.fde47b4b",
    "FAIL_TO_PASS": ["tests/test_b.py::test_x", "tests/test_a.py::test_y[1]"],
    "PASS_TO_PASS": ["tests/test_a.py::test_z"],
}
SHARED = Path(__file__).parents[3] / "shared" / "data" / "rows"


def test_specification_is_found_by_repository_and_version() -> None:
    found = find_specification(DJANGO, "swe-bench")
    assert found is not None
    assert (found.source, found.python, found.packages) == ("swebench 4.1.0", "3.6", REQUIREMENTS_FILE)
    assert found.packages_files == ("tests/requirements/py3.txt",)
    assert found.parser == "parse_log_django"
    assert found.test_command.startswith("./tests/runtests.py")


@pytest.mark.parametrize(
    ("changes", "source"),
    [
        ({"version": "0.1"}, "swe-bench"),
        ({"version": None}, "swe-bench"),
        ({"repo": "me/it"}, "swe-bench"),
        ({"repo": None}, "swe-bench"),
        ({}, "swe-rebench"),
        ({}, "swe-smith"),
        ({"repo": "swesmith/pallets__click."}, "swe-smith"),
        ({"repo": "swesmith/pallets__click.00000000"}, "swe-smith"),
    ],
)
def test_unknown_row_has_no_specification(changes: dict[str, Any], source: str) -> None:
    assert find_specification({**DJANGO, **changes}, source) is None


def test_each_data_set_has_specifications_of_its_own() -> None:
    mypy = find_specification({"repo": "python/mypy", "version": "1.7"}, "swe-gym")
    click = find_specification(SMITH, "swe-smith")
    config = {
        "python": "3.9",
        "packages": "environment.yml",
        "env_yml_path": ["env.yml"],
        "install": "pip install -e .",
        "test_cmd": "pytest -rA",
        "log_parser": "parse_log_pytest",
        "no_use_env": True,
        "pip_packages": ["pytest"],
    }
    row = {"repo": "me/it", "install_config": json.dumps(config), "requirements": "a==1\n\nb==2\n"}
    of_row = find_specification(row, "swe-rebench")
    assert mypy is not None
    assert click is not None
    assert of_row is not None
    assert (mypy.python, mypy.source.split()[0]) == ("3.12", "SWE-Gym/SWE-Bench-Fork")
    assert (click.source, click.parser, click.packages) == ("swesmith 0.0.9", "pytest", "")
    assert (of_row.packages, of_row.packages_files, of_row.own_python) == (
        ENVIRONMENT_FILE,
        ("env.yml",),
        True,
    )
    assert of_row.pinned == ("a==1", "b==2")


@pytest.mark.parametrize("config", ["[", [1], {"pre_install": [1]}, {"install": 3}])
def test_ill_typed_install_config_is_refused(config: Any) -> None:
    with pytest.raises(TaskError, match=r"install_config|must be"):
        find_specification({"repo": "me/it", "install_config": config}, "swe-rebench")


def test_specifications_name_images() -> None:
    assert image_name("swe-bench", "a__B-1") == "swebench/sweb.eval.x86_64.a_1776_b-1:latest"
    assert image_name("swe-gym", "a__b-1") == "xingyaoww/sweb.eval.x86_64.a_s_b-1:latest"
    assert image_name("swe-rebench", "a__b-1") == "swerebench/sweb.eval.x86_64.a_1776_b-1:latest"
    assert image_name("swe-smith", "a__b.01234567") == "swebench/swesmith.x86_64.a_1776_b.01234567:latest"
    assert image_name("kodcode", "a") is None


def test_directives_follow_the_rule_of_the_harness() -> None:
    django = find_specification(DJANGO, "swe-bench")
    sympy = find_specification({"repo": "sympy/sympy", "version": "1.5"}, "swe-bench")
    mypy = find_specification({"repo": "python/mypy", "version": "1.7"}, "swe-gym")
    click = find_specification(SMITH, "swe-smith")
    assert django is not None
    assert sympy is not None
    assert mypy is not None
    assert click is not None
    assert test_directives(django, DJANGO) == ["admin_views.test_nav", "'admin_views.new one'"]
    assert test_directives(sympy, DJANGO)[0] == "tests/admin_views/test_nav.py"
    cases = {"test_patch": "+[case testA]\n+x\n+[case testB-skip]\n"}
    assert test_directives(mypy, cases) == ["'testA or testB-skip'"]
    assert test_directives(click, SMITH) == ["tests/test_a.py", "tests/test_b.py"]


def test_test_patch_of_data_files_runs_the_whole_suite() -> None:
    django = find_specification(DJANGO, "swe-bench")
    assert django is not None
    assert (
        test_directives(
            django, {**DJANGO, "test_patch": PATCH[PATCH.index("diff --git a/tests/admin_views/data") :]}
        )
        == []
    )


def test_row_that_names_no_file_is_refused() -> None:
    (refused,) = import_rows([{**DJANGO, "test_patch": ""}]).refused
    assert "no test patch" in refused.reason


def test_script_applies_the_test_patch_and_runs_the_tests(tmp_path: Path) -> None:
    """The real bash and git, with stand-ins for conda and the tests."""
    django = find_specification(DJANGO, "swe-bench")
    assert django is not None
    folder = tmp_path / "tests" / "admin_views"
    folder.mkdir(parents=True)
    (folder / "test_nav.py").write_text("a = 1\n")
    (folder / "data.json").write_text("1\n")
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@b"]
    for arguments in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
        subprocess.run([*git, *arguments], check=True)
    (tmp_path / "tests" / "runtests.py").write_text('#!/bin/sh\necho "$@"; cat tests/admin_views/*\n')
    (tmp_path / "tests" / "runtests.py").chmod(0o755)
    django = dataclasses.replace(django, eval_commands=(), install="true")  # those change the machine
    patch = "END_OF_PATCH\n" + PATCH  # git skips text before a patch; the script must not end there
    script = evaluation_script(django, {**DJANGO, "base_commit": "HEAD", "test_patch": patch})
    script = script.replace("cd /testbed", f"cd {tmp_path}").replace("git config --global", "true")
    script = script.replace("source /opt/miniconda3/bin/activate\nconda activate testbed", "true")
    run = subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[0].endswith("--parallel 1 admin_views.test_nav admin_views.new one")
    assert "END_OF_PATCH" in run.stdout
    assert "a = 2" in run.stdout
    assert (folder / "test_nav.py").read_text() == "a = 1\n"  # restored


def test_fix_of_swe_smith_is_its_reversed_patch() -> None:
    row = {**SMITH, "problem_statement": "It fails.", "patch": PATCH}
    (task,) = import_rows([row]).tasks
    assert task.checks.gold_patch == reverse(PATCH) != PATCH
    assert seeded_bug(task) == PATCH
    assert PATCH in task.checks.script
    assert FORMATS["swe-smith"].write(task) == row


def test_script_has_one_pair_of_markers_around_the_tests() -> None:
    (task,) = import_rows([DJANGO]).tasks
    lines = task.checks.script.splitlines()
    assert lines.index(": '>>>>> Start Test Output'") + 2 == lines.index(": '>>>>> End Test Output'")


@pytest.mark.skipif(not SHARED.is_dir(), reason="the published rows are not there")
@pytest.mark.parametrize(
    ("file", "number"),
    [
        ("swe_bench_verified.parquet", 500),
        ("swe_gym.jsonl", 10),
        ("swe_rebench.jsonl", 3),
        ("swe_smith.jsonl", 1),
    ],
)
def test_published_row_has_specification_and_script(file: str, number: int) -> None:
    rows = [row for row in read_rows(SHARED / file) if not isinstance(row, TaskError)]
    assert all(find_specification(row, detect(row).name) for row in rows)
    imported = import_rows(rows)
    assert len(imported.tasks) == number
    assert all(task.checks.script for task in imported.tasks)


@pytest.mark.full
@pytest.mark.parametrize(
    ("data_set", "packages"),
    [("swe-bench", ["swebench==4.1.0"]), ("swe-smith", ["swebench==4.1.0", "swesmith==0.0.9"])],
)
def test_data_equal_the_published_package(data_set: str, packages: list[str], tmp_path: Path) -> None:
    """The package without its requirements: those of edition 5 serve it."""
    install = ["uv", "pip", "install", "-q", "--no-deps", "--target", str(tmp_path), *packages]
    done = subprocess.run([sys.executable, "-m", *install], capture_output=True, text=True)
    if done.returncode != 0:
        pytest.skip(f"{packages[-1]} cannot be installed here: {done.stderr.strip().splitlines()[-1]}")
    script = Path(__file__).parents[2] / "scripts" / "update_specifications.py"
    made = subprocess.run(
        [sys.executable, str(script), data_set, "--print"],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
    )
    shipped = resources.files("hone.tasks.specifications") / "data" / f"{data_set}.json"
    assert made.stdout == shipped.read_text("utf-8")


INNER = ("test_capsysbinary.py::test_hello", "[100%]")


def test_name_that_a_test_prints_is_left_out() -> None:
    """Tests of pytest show the output of sessions on files that they write, which harnesses read, too."""
    path = "testing/test_capture.py"
    kept = (f"{path}::test_a", f"{path}::test_b[100%]", "test_capture.py::test_c", "test_d")
    row = {
        **DJANGO,
        "repo": "pytest-dev/pytest",
        "version": "6.0",
        "test_patch": PATCH.split("diff --git")[1].join(("diff --git", "")).replace(
            "tests/admin_views/test_nav.py", path
        ),
        "FAIL_TO_PASS": [kept[0], INNER[1]],
        "PASS_TO_PASS": [*kept[1:], INNER[0]],
    }  # fmt: skip
    task = FORMATS["swe-bench"].read(row)
    assert task.checks.named_tests == kept
    assert set(task.metadata["printed_names"]) == set(INNER)
    assert FORMATS["swe-bench"].write(task) == row
    with pytest.raises(TaskError, match="names no test of the files"):
        FORMATS["swe-bench"].read({**row, "FAIL_TO_PASS": [*INNER]})


def test_command_on_directories_leaves_no_name_out() -> None:
    script = "set -x\n: '>>>>> Start Test Output'\npytest -rA tests\n: '>>>>> End Test Output'\n"
    assert printed_names(INNER, script) == ()
    assert printed_names(INNER, script.replace("tests\n", "tests/test_a.py\n")) == INNER
