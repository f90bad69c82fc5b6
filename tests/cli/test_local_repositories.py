"""Rows of SWE-bench, whose repositories lie in a folder, proven and graded without any image."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.grading.calc import BUGGY, GOLD, OLD_TEST, TEST_PATCH, git

pytestmark = pytest.mark.sandbox


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A row that holds, one already solved, one of an unknown commit, one without tests."""
    folder = tmp_path / "repos" / "someone__calc"
    (folder / "tests").mkdir(parents=True)
    (folder / "calc").mkdir()
    (folder / "calc" / "__init__.py").write_text(BUGGY)
    (folder / "tests" / "test_calc.py").write_text(OLD_TEST)
    git(folder, "init", "-q", "--initial-branch=main")
    git(folder, "add", ".")
    git(folder, "commit", "-qm", "Base")
    row: dict[str, Any] = {
        "instance_id": "someone__calc-1",
        "repo": "someone/calc",
        "base_commit": git(folder, "rev-parse", "HEAD"),
        "patch": GOLD,
        "test_patch": TEST_PATCH,
        "problem_statement": "add subtracts",
        "version": "1.0",
        "FAIL_TO_PASS": json.dumps(["tests/test_calc.py::test_add"]),
        "PASS_TO_PASS": json.dumps(["tests/test_calc.py::test_nothing"]),
    }
    solved = {**row, "instance_id": "solved", "FAIL_TO_PASS": row["PASS_TO_PASS"], "PASS_TO_PASS": "[]"}
    lost = {**row, "instance_id": "lost", "base_commit": "1" * 40}
    untested = {**row, "instance_id": "untested", "FAIL_TO_PASS": "[]"}
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (row, solved, lost, untested)))
    return path


def _hone(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [
        sys.executable,
        "-c",
        "from hone.cli import main; raise SystemExit(main())",
        *map(str, arguments),
    ]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=200)


@pytest.mark.full
def test_rows_are_validated_on_local_repositories(rows: Path, tmp_path: Path) -> None:
    out = tmp_path / "admitted.jsonl"
    done = _hone(
        *("tasks", "validate", rows, "--repo-root", tmp_path / "repos"),
        *("--provider", "namespaces", "--repeat", "2", "--json", "-o", out),
    )
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert report["admitted"] == ["someone__calc-1"]
    assert report["refused"]["solved"].startswith("already solved")
    assert "has no commit 1111" in report["refused"]["lost"]
    assert "row 4 (untested): `FAIL_TO_PASS` names no test" in done.stderr
    proven = report["tasks"]["someone__calc-1"]
    assert (proven["gold"], proven["empty"], proven["flaky"]) == ([True, True], [False, False], [])
    assert proven["seconds"] > 0
    assert proven["memory_mib"] > 0
    (task,) = map(json.loads, out.read_text().splitlines())
    assert task["metadata"]["validation"]["repeats"] == 2


@pytest.mark.full
def test_predictions_are_graded_on_their_repositories(rows: Path, tmp_path: Path) -> None:
    conftest = (
        "diff --git a/conftest.py b/conftest.py\nnew file mode 100644\n--- /dev/null\n+++ b/conftest.py\n"
    )
    hook = [
        "import pytest",
        "@pytest.hookimpl(hookwrapper=True)",
        "def pytest_runtest_makereport(item, call):",
    ]
    hook += ["    outcome = yield", "    outcome.get_result().outcome = 'passed'"]
    patches = {
        "someone__calc-1": GOLD,
        "solved": conftest + f"@@ -0,0 +1,{len(hook)} @@\n" + "".join(f"+{line}\n" for line in hook),
        "lost": GOLD,
        "nobody": GOLD,
    }
    predictions = tmp_path / "preds.jsonl"
    lines = [
        {"instance_id": name, "model_name_or_path": "m", "model_patch": p} for name, p in patches.items()
    ]
    predictions.write_text("".join(json.dumps(line) + "\n" for line in lines))
    done = _hone(
        *("grade", "--tasks", rows, "--predictions", predictions, "--provider", "namespaces"),
        *("--repo-root", tmp_path / "repos", "-o", tmp_path / "out"),
    )
    assert done.returncode == 1  # two had no verdict
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert summary["resolved_ids"] == ["someone__calc-1"]
    assert summary["tampered_ids"] == ["solved"]
    assert summary["unknown_ids"] == ["nobody"]
    assert "has no commit 1111" in done.stderr
    report = json.loads((tmp_path / "out" / "solved" / "report.json").read_text())["solved"]
    assert (report["outcome"], report["resolved"]) == ("tampered", False)
    assert "conftest.py" in report["evidence"]
    assert "1 of 2 graded patches resolve their task" in done.stdout
