"""A task compiles to a plan, which protects the paths of its tests."""

from __future__ import annotations

import dataclasses

import pytest

from hone.environment import filter_patch
from hone.grading import GraderError
from hone.grading.plan import compile_plan, find_pytest, protected_paths, split_script
from hone.grading.rules import Rule
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
    ("command", "rule"), [("pytest tests/a.py", Rule.PASS_AND_FAIL), ("tox", Rule.FAIL_ONLY)]
)
def test_rule_for_absent_tests_needs_a_log(command: str, rule: Rule) -> None:
    script = f"{START}\n{command}\n{END}\n"
    plan = compile_plan(make_task(script=script, parser="parse_log_pytest", rule="fail_only"))
    assert (plan.rule, plan.log_parser is None) == (rule, rule is Rule.PASS_AND_FAIL)


def test_script_is_for_an_image_and_not_for_a_local_repository() -> None:
    task = make_task(script=f"{START}\npytest tests/a.py\n{END}\n", parser="parse_log_pytest")
    local = dataclasses.replace(task.environment, image="repo:/repositories/calc", commit="0" * 40)
    assert compile_plan(task).script is not None
    assert compile_plan(dataclasses.replace(task, environment=local)).script is None
    checks = dataclasses.replace(task.checks, parser="parse_log_django")
    with pytest.raises(GraderError, match="do not run with pytest"):
        compile_plan(dataclasses.replace(task, environment=local, checks=checks))


def test_script_is_split_at_its_markers() -> None:
    lines = ["#!/bin/bash", "set -uxo pipefail", "one", "two", START, "test", "more", END, "last", "end"]
    script = split_script("\n".join(lines))
    assert (script.before, script.test, script.after) == ("one\ntwo", "test\nmore", "last\nend")


@pytest.mark.parametrize("lines", [[START], [END], [END, "x", START], [START, START, END], [START, END, END]])
def test_script_without_one_pair_of_markers_is_refused(lines: list[str]) -> None:
    with pytest.raises(GraderError, match="does not mark its test output once"):
        split_script("\n".join(lines))


@pytest.mark.parametrize(
    ("command", "python", "files"),
    [
        ("pytest", ("python",), ()),
        ("pytest -rA tests/a.py", ("python",), ("tests/a.py",)),
        ("bin/pytest a.py b.py", ("bin/python",), ("a.py", "b.py")),
        ("/usr/bin/python3.9 -m pytest -p no:x a.py", ("/usr/bin/python3.9",), ("a.py",)),
        ("\n# a comment\n  # another\n\npytest a.py\n \n", ("python",), ("a.py",)),
    ],
)
def test_pytest_is_found_in_a_test_command(
    command: str, python: tuple[str, ...], files: tuple[str, ...]
) -> None:
    found = find_pytest(command)
    assert found is not None
    assert (found.python, found.files, found.env) == (python, files, {})


def test_assignments_and_options_of_a_test_command_are_kept() -> None:
    found = find_pytest("A=1 B=x=y pytest --tb=short -k 'one or two' --strict-markers a.py")
    assert found is not None
    assert (found.env, found.files) == ({"A": "1", "B": "x=y"}, ("a.py",))
    plain = find_pytest("pytest a.py")
    assert plain is not None
    assert found.arguments != plain.arguments


@pytest.mark.parametrize(
    "command",
    [
        "",
        "tox",
        "pytest a; true",
        "pytest a\npytest b",
        "pytest 'a",
        "python -m tox",
        "python pytest a",
        "A=1",
    ],
)
def test_other_commands_are_no_run_of_pytest(command: str) -> None:
    assert find_pytest(command) is None
