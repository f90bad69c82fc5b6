"""The files of an evaluation have the keys of OpenClaw-RL's `eval_swe.py`, in its order."""

from __future__ import annotations

import dataclasses
from typing import Any

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


def problem_of(*rows: results.Result, **known: Any) -> str | None:
    named = {"model": "m", "data": "d", "trainable": True, "args": {}, "uses_policy": True, **known}
    return results.summarise(rows, EvaluateSettings(), **named)["problem"]


def test_evaluation_without_a_measured_sample_says_why():
    made = [trajectory(f"r{number}", Outcome.ENGINE_ERROR) for number in range(3)]
    broken = [
        results.row(dataclasses.replace(each, error="the engine is gone"), number, None, "d")
        for number, each in enumerate(made)
    ]
    said = problem_of(*broken)
    assert said is not None
    assert "an infrastructure fault ended every sample (3 of 3: 3 with engine_error" in said
    assert "the commonest error: the engine is gone" in said
    (fine,) = [results.row(trajectory("r", Outcome.UNRESOLVED), 0, None, "d")]
    assert problem_of(*broken, fine | {"tokens": 1}) is None


def test_evaluation_without_a_token_of_the_policy_says_why():
    empty = results.row(trajectory("r", Outcome.CONTEXT_LIMIT), 0, None, "d") | {"tokens": 0, "n_steps": 0}
    said = problem_of(empty)
    assert said is not None
    assert said.endswith("raise engine.context_tokens")
    assert problem_of(empty, empty | {"tokens": 5}) is None
    assert problem_of(empty, uses_policy=False) is None
    assert problem_of(empty | {"n_steps": 2}, trainable=False) is None  # an endpoint may not count its tokens
