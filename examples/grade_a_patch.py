"""Grade patches for a task by its hidden tests, in fresh sandboxes.

    .venv/bin/python examples/grade_a_patch.py [TASKS.jsonl]

Without a file the task is generated. It prints three verdicts: the reference fix resolves the task, an empty
change does not, and a patch that would end the test run early does not either.
"""

import sys

import hone

EARLY_EXIT = """\
diff --git a/sitecustomize.py b/sitecustomize.py
new file mode 100644
--- /dev/null
+++ b/sitecustomize.py
@@ -0,0 +1,2 @@
+import os
+os._exit(0)
"""


def main() -> None:
    if sys.argv[1:]:
        task = hone.load_tasks(sys.argv[1])[0]
    else:
        task = hone.load_tasks("curriculum", train=1, test=0, unseen=0)[0]
    for name, patch in (
        ("reference fix", task.checks.gold_patch),
        ("no change", ""),
        ("early exit", EARLY_EXIT),
    ):
        verdict = hone.grade(task, patch)
        passed = sum(status == "passed" for status in verdict.tests.values())
        why = f", tampered: {verdict.tampered}" if verdict.tampered else ""
        print(f"{name}: resolved {verdict.resolved}, {passed} of {len(verdict.tests)} tests pass{why}")


if __name__ == "__main__":
    main()
