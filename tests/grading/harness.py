"""The report of an installed SWE-bench harness on logs: `python harness.py < CASES > REPORTS`, JSON lines.

Runs with the version of the `swebench` package that is on the path; imports nothing of Hone.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any


def report(case: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what the harness reports, or how it crashed."""
    from swebench.harness.grading import get_eval_report

    log = folder / "test_output.txt"
    log.write_text(case["log"], encoding="utf-8", newline="")
    spec: Any = SimpleNamespace(**case["spec"], eval_type="pass_and_fail")
    prediction = {"instance_id": spec.instance_id, "model_patch": "a patch"}
    try:
        found = get_eval_report(spec, prediction, str(log), include_tests_status=True)[spec.instance_id]
    except IndexError as error:  # its parser of seaborn expects a second word
        return {"crash": repr(error)}
    return {
        "applied": found["patch_successfully_applied"],
        "resolved": found["resolved"],
        "tests": found.get("tests_status"),
    }


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        for line in sys.stdin:
            print(json.dumps(report(json.loads(line), Path(folder))))
