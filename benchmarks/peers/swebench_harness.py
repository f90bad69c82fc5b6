"""The SWE-bench harness, edition 5: its `run_evaluation`, as a process over a local Docker engine."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

MODEL = "predictions"
TIMEOUT_S = 600  # of the tests of one instance, unless the caller says otherwise
_TIME = re.compile(r"^(\d{4}-\d\d-\d\d \d\d:\d\d:\d\d,\d{3}) - ", re.MULTILINE)
_RUNTIME = re.compile(r"Test runtime: ([\d_]+\.\d+) seconds")
_SUBTEST = re.compile(r"^SUBFAILED.* (\S+::\S+)(?: - .*)?$", re.MULTILINE)  # a word its parser does not know


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """What the harness says of one prediction."""

    resolved: bool
    tests: Mapping[str, bool] | None  # test id -> whether it counts as passed; None: it read no test at all
    why: str = ""  # there are none
    infrastructure: bool = False  # it labels the failure as one of the environment, or it reports nothing
    subtests_failed: frozenset[str] = frozenset()  # tests of which its log tells that a subtest failed
    seconds: float | None = None  # from the container's creation to its removal; None: it did not start one
    test_seconds: float | None = None  # of its eval script, git and the start of the runner included


def evaluate(
    rows: Sequence[Mapping[str, Any]],
    patches: Mapping[str, str],
    *,
    folder: Path,
    run_id: str,
    workers: int,
    timeout_s: int = TIMEOUT_S,
) -> dict[str, Evaluation]:
    """Instance id -> evaluation, of one patch per row.

    Args:
        folder: a new one, where the harness keeps its logs.
        workers: evaluations at a time.
        timeout_s: of the tests of one instance.
    Raises:
        RuntimeError: the harness failed as a whole.
    """
    folder.mkdir(parents=True)
    predictions = [
        {
            "instance_id": row["instance_id"],
            "model_name_or_path": MODEL,
            "model_patch": patches[row["instance_id"]],
        }
        for row in rows
    ]
    (folder / "rows.json").write_text(json.dumps(list(rows)))
    (folder / "predictions.json").write_text(json.dumps(predictions))
    command = [
        *(sys.executable, "-m", "swebench.harness.run_evaluation"),
        *("--dataset_name", "rows.json", "--predictions_path", "predictions.json"),
        *("--run_id", run_id, "--max_workers", str(workers), "--timeout", str(timeout_s)),
    ]
    environment = {**os.environ, "HF_HUB_OFFLINE": "1", "TQDM_DISABLE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    summary = folder / f"{MODEL}.{run_id}.json"
    if done.returncode != 0 or not summary.is_file():
        raise RuntimeError(
            f"the harness ended with {done.returncode}:\n{done.stdout[-2000:]}{done.stderr[-4000:]}"
        )
    _remove_containers(run_id)
    report = json.loads(summary.read_text())
    logs = folder / "logs" / "run_evaluation" / run_id / MODEL
    return {row["instance_id"]: _read(row["instance_id"], logs, report) for row in rows}


def _read(instance: str, logs: Path, summary: Mapping[str, Any]) -> Evaluation:
    if instance in summary["empty_patch_ids"]:
        return Evaluation(resolved=False, tests=None, why="an empty patch is not run")
    log = (logs / instance / "run_instance.log").read_text()
    times = [datetime.strptime(text, "%Y-%m-%d %H:%M:%S,%f") for text in _TIME.findall(log)]
    seconds = (times[-1] - times[0]).total_seconds()
    runtime = _RUNTIME.search(log)
    test_seconds = float(runtime[1].replace("_", "")) if runtime else None
    file = logs / instance / "report.json"
    entry = json.loads(file.read_text())[instance] if file.is_file() else {}
    resolved = bool(entry.get("resolved"))
    if resolved != (instance in summary["resolved_ids"]):
        raise RuntimeError(f"the harness says two things of {instance}: see {logs}")
    tests, why = None, _reason(log, entry)
    if "tests_status" in entry:
        lists = [entry["tests_status"][name] for name in ("FAIL_TO_PASS", "PASS_TO_PASS")]
        tests = {test: passed for each in lists for passed, key in _KEYS for test in each[key]}
    output = logs / instance / "test_output.txt"
    subtests = _SUBTEST.findall(output.read_text(errors="replace")) if output.is_file() else []
    return Evaluation(
        resolved=resolved,
        tests=tests,
        why=why,
        infrastructure=instance in summary["infra_failure_ids"] or why == _NO_REPORT,
        subtests_failed=frozenset(subtests),
        seconds=seconds,
        test_seconds=test_seconds,
    )


_NO_REPORT = "no report"
_KEYS = ((True, "success"), (False, "failure"))


def _reason(log: str, entry: Mapping[str, Any]) -> str:
    if "tests_status" in entry:
        return ""
    if ">>>>> Patch Apply Failed" in log:
        return "the patch does not apply"
    return "the log is invalid" if entry else _NO_REPORT


def _remove_containers(run_id: str) -> None:
    """Those that it could not remove itself."""
    listed = ["docker", "ps", "--all", "--quiet", "--filter", f"name={run_id}"]
    left = subprocess.run(listed, check=True, capture_output=True, text=True).stdout.split()
    if left:
        subprocess.run(["docker", "rm", "--force", *left], check=True, stdout=subprocess.DEVNULL)
