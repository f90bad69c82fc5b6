"""A task compiles to a plan, which protects the paths of its tests."""

from __future__ import annotations

import dataclasses

import pytest

from hone.environment import filter_patch
from hone.grading import GraderError
from hone.grading.plan import case_files, compile_plan, make_job, protected_paths, split_script
from hone.types import Checks, Environment, Task
from tests.grading.example import make_task


def _new_file(path: str, mode: str = "100644", line: str = "x") -> str:
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1 @@\n+{line}\n"


def test_changes_in_test_directories_are_dropped() -> None:
    files = ["pkg/tests/deep/test_hidden.py", "src/test_beside.py"]
    task = make_task(fail_to_pass=tuple(f"{file}::test" for file in files), pass_to_pass=(), test_files={})
    kept, dropped = (
        ["src/x.py", "pkg/testsuite.py", "tests.py"],
        ["pkg/tests/helper.py", "pkg/tests", files[1]],
    )
    filtered = filter_patch("".join(map(_new_file, kept + dropped)), protected_paths(task))
    assert (filtered.paths, filtered.removed_paths) == (tuple(kept), tuple(dropped))


def test_files_of_a_test_patch_are_protected() -> None:
    task = make_task(test_patch=_new_file("lib/tests/roots/page.txt") + _new_file("check/all.py"))
    assert {"lib/tests/roots/page.txt", "lib/tests/", "check/all.py"} <= set(protected_paths(task))
    assert "words" not in protected_paths(make_task(test_patch="words\n"))


def test_files_of_a_scripts_test_command_are_protected() -> None:
    script = """cd /testbed
git apply src/other.py
: '>>>>> Start Test Output'
./tests/runtests.py --settings=test_sqlite lib/cases/check.py && bin/test -C ../x /usr/bin/env src/fixed.py
: '>>>>> End Test Output'
git checkout src/later.py
"""
    task = make_task(
        script=script, gold_patch=_new_file("src/fixed.py"), fail_to_pass=("a",), pass_to_pass=()
    )
    named = {"tests/runtests.py", "lib/cases/check.py", "bin/test", "tests/"}
    assert set(protected_paths(task)) == named | {"a", "tests/test_hidden.py", "tests/test_more.py"}


START, END = ": '>>>>> Start Test Output'", ": '>>>>> End Test Output'"


@pytest.mark.parametrize(
    ("command", "parser", "by_log"),
    [
        ("pytest tests/a.py", "parse_log_pytest", False),
        ("pytest tests/a.py", "parse_log_django", True),
        ("python -m unittest a", "parse_log_django", False),
        ("python -m unittest a", "parse_log_pytest", True),
        ("bin/test -C a.py", "parse_log_sympy", False),
        ("bin/test -C a.py", "parse_log_django", True),
        ("nosetests a.py", "parse_log_django", True),
    ],
)
def test_command_is_taken_over_where_its_parser_reads_its_names(
    command: str, parser: str, by_log: bool
) -> None:
    plan = compile_plan(make_task(script=f"{START}\n{command}\n{END}\n", parser=parser))
    assert plan.by_log == by_log
    assert (plan.log_parser is None) == (not by_log)


def test_script_is_for_an_image_and_not_for_a_local_repository() -> None:
    task = make_task(script=f"{START}\npytest tests/a.py\n{END}\n", parser="parse_log_pytest")
    local = dataclasses.replace(task.environment, image="repo:/repositories/calc", commit="0" * 40)
    assert compile_plan(task).script is not None
    assert compile_plan(dataclasses.replace(task, environment=local)).script is None
    checks = dataclasses.replace(task.checks, parser="parse_log_django")
    with pytest.raises(GraderError, match="do not run with pytest"):
        compile_plan(dataclasses.replace(task, environment=local, checks=checks))


def test_only_tasks_without_a_command_outlive_a_broken_module() -> None:
    option = "--continue-on-collection-errors"
    checks = Checks(fail_to_pass=("t.py::t",), pass_to_pass=(), test_files={}, gold_patch="", command=("-v",))
    task = Task(id="t", problem="", environment=Environment(image="host"), checks=checks, source="")
    of_data_set = dataclasses.replace(task, checks=dataclasses.replace(checks, parser="parse_log_pytest"))
    assert make_job(task).command == (option, "-v")
    assert make_job(of_data_set).command == ("-v",)


def test_script_is_split_at_its_markers() -> None:
    lines = ["#!/bin/bash", "set -uxo pipefail", "one", "two", START, "test", "more", END, "last", "end"]
    script = split_script("\n".join(lines))
    assert (script.before, script.test, script.after) == ("one\ntwo", "test\nmore", "last\nend")


@pytest.mark.parametrize(
    ("lines", "before", "test"),
    [
        (["cd /testbed", "pytest a.py"], "cd /testbed", "pytest a.py"),
        (["cd /testbed", "./run_tests.sh"], "", "cd /testbed\n./run_tests.sh"),
        (["for x in 1 2; do", "pytest a.py", "done"], "", "for x in 1 2; do\npytest a.py\ndone"),
    ],
)
def test_script_without_markers_ends_with_its_test_command(lines: list[str], before: str, test: str) -> None:
    script = split_script("\n".join(lines))
    assert (script.before, script.test, script.after, script.marked) == (before, test, "", False)


def test_modules_of_unittests_names_are_protected() -> None:
    tests = ["test_x (pkg.checks.Case)", "test_y (pkg.test_a.Case.test_y)", "A sentence of a docstring."]
    files = ("pkg/checks.py", "pkg/checks/__init__.py", "pkg/test_a.py", "pkg/test_a/__init__.py")
    assert case_files(tests) == files
    task = make_task(fail_to_pass=tuple(tests), pass_to_pass=(), gold_patch=_new_file("pkg/checks.py"))
    assert {*files} - {"pkg/checks.py"} <= set(protected_paths(task))
    assert "pkg/checks.py" not in protected_paths(task)


@pytest.mark.parametrize("lines", [[START], [END], [END, "x", START], [START, START, END], [START, END, END]])
def test_script_without_one_pair_of_markers_is_refused(lines: list[str]) -> None:
    with pytest.raises(GraderError, match="does not mark its test output once"):
        split_script("\n".join(lines))
