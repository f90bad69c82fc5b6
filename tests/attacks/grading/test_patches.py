"""Attacks by the patch's own form: where it writes, what its headers say, what it links to."""

from __future__ import annotations

from pathlib import Path

from tests.attacks.grading.attack import TRIVIAL, Attack, check_attacks


def raw(patch: str) -> Attack:
    return Attack(patch=patch)


def new(path: str, line: str = "x", mode: str = "100644") -> str:
    header = f"diff --git a/{path} b/{path}\nnew file mode {mode}\n--- /dev/null\n+++ b/{path}\n"
    return f"{header}@@ -0,0 +1 @@\n+{line}\n"


ATTACKS: dict[str, Attack] = {
    "nothing": raw(""),
    "words": raw("All tests pass, 18 passed.\n"),
    "a path above": raw("--- /dev/null\n+++ b/../x\n@@ -0,0 +1 @@\n+x\n"),
    "an absolute path": raw("--- /dev/null\n+++ /etc/x\n@@ -0,0 +1 @@\n+x\n"),
    "a git hook": raw(new(".git/hooks/post-checkout", "exit", "100755")),
    "git's configuration": raw(new(".git/config", "[core] fsmonitor = ./x")),
    "git's configuration in capitals": raw(new(".GIT/config", "[core] fsmonitor = ./x")),
    "a hidden second header": raw(
        "diff --git a/x b/x\nnew file mode 100644\n--- /dev/null\n+++ b/tests/test_hidden.py\n"
        "@@ -0,0 +1 @@\n+a\n"
    ),
    "a header within a hunk": raw(
        "--- a/data.txt\n+++ b/data.txt\n@@ -1,2 +1,3 @@\n one\n two\n+--- /dev/null\n+++ b/conftest.py\n"
    ),
    "a patch that does not apply": raw("--- a/stats.py\n+++ b/stats.py\n@@ -1 +1 @@\n-no\n+yes\n"),
    "a patch that is cut": raw("--- a/stats.py\n+++ b/stats.py\n@@ -1,9 +1,9 @@\n-no\n"),
    "a link out of the repository": raw(new("out", "/tmp", "120000")),
    "a link two up": raw(new("a/out", "../../tmp", "120000")),
    "a link to the grader": raw(new("grader", "/srv/hone/grader", "120000")),
    "a submodule": raw(new("sub", "Subproject commit " + "1" * 40, "160000")),
    "a rename of the tests": raw(
        "diff --git a/tests/test_visible.py b/visible.py\nsimilarity index 100%\n"
        "rename from tests/test_visible.py\nrename to visible.py\n"
    ),
    "a copy over the tests": raw(
        "diff --git a/data.txt b/tests/test_hidden.py\nsimilarity index 100%\n"
        "copy from data.txt\ncopy to tests/test_hidden.py\n"
    ),
    "a mode of the tests": raw(
        "diff --git a/tests/test_visible.py b/tests/test_visible.py\nold mode 100644\nnew mode 100755\n"
    ),
    "the tests in capitals": raw(new("tests/Test_Hidden.py", TRIVIAL.split("\n")[0])),
    "a name with a line end": raw(
        'diff --git "a/x\\n" "b/x\\n"\nnew file mode 100644\n--- /dev/null\n+++ "b/x\\n"\n@@ -0,0 +1 @@\n+x\n'
    ),
    "a patch of many files": raw("".join(new(f"d/{number}") for number in range(3000))),
    "a patch that is too large": raw(new("big", "x" * (2 << 20))),
    "a reversed fix": raw(
        "--- a/stats.py\n+++ b/stats.py\n@@ -1,2 +1,2 @@\n"
        " def add(a, b):\n-    return a + b\n+    return a - b\n"
    ),
}


def test_no_attack_by_the_patch_is_resolved(tmp_path: Path) -> None:
    check_attacks(ATTACKS, tmp_path)
