"""A repository with one function, a bug, its fix and its new test, in SWE-bench's form."""

from __future__ import annotations

import subprocess
from pathlib import Path

BUGGY = "def add(a, b):\n    return a - b\n"
OLD_TEST = "from calc import add\n\n\ndef test_nothing():\n    assert add(3, 0) == 3\n"
GOLD = """diff --git a/calc/__init__.py b/calc/__init__.py
--- a/calc/__init__.py
+++ b/calc/__init__.py
@@ -1,2 +1,2 @@
 def add(a, b):
-    return a - b
+    return a + b
"""
TEST_PATCH = """diff --git a/tests/test_calc.py b/tests/test_calc.py
--- a/tests/test_calc.py
+++ b/tests/test_calc.py
@@ -3,3 +3,7 @@

 def test_nothing():
     assert add(3, 0) == 3
+
+
+def test_add():
+    assert add(1, 2) == 3
"""


def git(folder: Path, *arguments: str) -> str:
    who = ["-c", "user.name=x", "-c", "user.email=x@localhost", "-c", "safe.directory=*"]
    done = subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True, text=True)
    return done.stdout.strip()
