"""The files of an evaluation have the keys of OpenClaw-RL's `eval_swe.py`, in its order."""

from __future__ import annotations

from hone.evaluate import results
from hone.evaluate.settings import EvaluateSettings
from hone.outcomes import Outcome
from tests.cli.fake_run import trajectory

RESULT = ["instance_id", "resolved", "exit_status", "patch_source", "n_steps", "error", "elapsed", "run_dir"]
SUMMARY = [
    *("model", "data", "total", "resolved", "resolve_rate", "errors", "no_patch", "avg_steps"),
    *("avg_elapsed_s", "timestamp", "args"),
]


def test_published_keys_are_in_results_and_summary():
    rows = [
        results.row(trajectory(f"r{number}", outcome), number, None, f"t__{number}")
        for number, outcome in enumerate((Outcome.RESOLVED, Outcome.UNRESOLVED))
    ]
    assert [key for key in rows[0] if key in RESULT] == RESULT
    summary = results.summarise(
        rows, EvaluateSettings(), model="m", data="d.jsonl", trainable=True, args={"seed": 1}
    )
    assert [key for key in summary if key in SUMMARY] == SUMMARY
    assert (summary["total"], summary["resolved"], summary["resolve_rate"]) == (2, 1, 0.5)
    assert (summary["errors"], summary["no_patch"], summary["avg_steps"]) == (0, 1, 1)
