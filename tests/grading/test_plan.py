"""A task compiles to a plan, which protects the paths of its tests."""

from __future__ import annotations

from hone.environment import filter_patch
from hone.grading.plan import protected_paths
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
