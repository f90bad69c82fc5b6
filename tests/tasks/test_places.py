from hone.tasks.places import changed_files, changed_functions

AFTER = """\
import os

LIMIT = 3


class Parser:
    size = 1

    def parse(self):
        def inner():
            return 1

        return inner()

    @property
    def name(self):
        return "x"


def main():
    return LIMIT
"""


def patch(*hunks: str, path: str = "a/b.py") -> str:
    return f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n{''.join(hunks)}"


def test_files_of_a_patch() -> None:
    made = "diff --git a/new.py b/new.py\n--- /dev/null\n+++ b/new.py\n@@ -0,0 +1 @@\n+x = 1\n"
    assert changed_files(patch("@@ -1 +1 @@\n-a\n+b\n") + made) == ("a/b.py", "new.py")


def test_line_that_looks_like_a_header_is_no_file() -> None:
    assert changed_files(patch("@@ -1,2 +1,2 @@\n--- a/other.py\n+++ b/other.py\n x\n")) == ("a/b.py",)


def test_innermost_function_is_named() -> None:
    hunks = (
        "@@ -11 +11 @@\n-            return 2\n+            return 1\n",
        "@@ -17 +17 @@\n-        return 'y'\n+        return \"x\"\n",
    )
    assert changed_functions(patch(*hunks), {"a/b.py": AFTER}) == ("Parser.name", "Parser.parse.inner")


def test_removed_line_belongs_to_the_function_around_it() -> None:
    hunk = "@@ -20,3 +20,2 @@\n def main():\n-    check()\n     return LIMIT\n"
    assert changed_functions(patch(hunk), {"a/b.py": AFTER}) == ("main",)


def test_lines_outside_of_functions_have_none() -> None:
    hunk = "@@ -3 +3 @@\n-LIMIT = 2\n+LIMIT = 3\n"
    assert changed_functions(patch(hunk), {"a/b.py": AFTER}) == ()
    assert changed_functions(patch(hunk), {"a/b.py": "not python("}) == ()
