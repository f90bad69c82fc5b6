"""The files of an evaluation: `results.jsonl` grows line by line, the rest is written at the end.

results.jsonl   one line per sample that ended; a later line of the same sample replaces an earlier one
summary.json    the figures
preds.jsonl     the first sample's patch of each task, as SWE-bench's harness reads them
preds.json      the same as one object by id, as mini-swe-agent writes them
report.html     the figures as a page
rollouts/       the trajectories, each with a page of its own
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hone.evaluate.errors import EvaluateError
from hone.evaluate.settings import EvaluateSettings
from hone.evaluate.statistics import mean_pass_at_k, resolve_rate
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.rewards import solved
from hone.types import Trajectory
from hone.utils.jsonl import append_json, drop_partial_line, read_json_lines

Row = dict[str, Any]  # one line of results.jsonl
Key = tuple[str, int]  # instance_id, sample
Predictions = dict[str, dict[str, str]]  # instance_id -> a SWE-bench prediction


def row(trajectory: Trajectory, sample: int, group: str | None, run_dir: str) -> Row:
    """What one sample contributes; `elapsed` are the seconds for which it held a sandbox."""
    timings = trajectory.timings
    prompt, sampled = tokens_of(trajectory)
    return {
        "instance_id": trajectory.task_id,
        "sample": sample,
        "resolved": solved(trajectory.outcome, trajectory.verdict),
        "exit_status": trajectory.outcome.value,
        "patch_source": "git_diff" if trajectory.patch.strip() else None,
        "n_steps": len(trajectory.turns),
        "error": trajectory.error,
        "elapsed": sum(timings.get(stage, 0.0) for stage in ("start", "agent", "patch", "close", "grade")),
        "run_dir": run_dir,
        "score": None if trajectory.verdict is None else trajectory.verdict.score,
        "reward": trajectory.reward,
        "prompt_tokens": prompt,
        "tokens": sampled,
        "engine_s": timings.get("model", 0.0),
        "command_timeouts": sum(turn.exit_code == -1 for turn in trajectory.turns),
        "group": group,
    }


def tokens_of(trajectory: Trajectory) -> tuple[int, int]:
    """Prompt and sampled tokens over all calls, as the engine counted them."""
    calls = trajectory.calls
    return sum(call.prompt_tokens for call in calls), sum(call.sampled_tokens for call in calls)


def is_fault(result: Row) -> bool:
    """Whether the sample says nothing about the policy and is to be run again."""
    return OUTCOME_RULES[Outcome(result["exit_status"])].fault is Fault.INFRASTRUCTURE


def append(path: Path, result: Row) -> None:
    """Append one line. Raises EvaluateError on a full disk."""
    try:
        append_json(path, result)
    except OSError as error:
        raise EvaluateError(
            f"cannot write {path}: {os.strerror(error.errno or 0)}; mend that and run the same command again"
        ) from error


def read(path: Path) -> dict[Key, Row]:
    """The last line of each sample; {} where there is no file. A last line cut short is removed.

    Raises EvaluateError when a line is not a result.
    """
    drop_partial_line(path)
    rows: dict[Key, Row] = {}
    try:
        lines = list(read_json_lines(path))
    except ValueError as error:
        raise EvaluateError(f"{error}; every line must be a result of an evaluation") from error
    for number, result in lines:
        try:
            rows[result["instance_id"], result["sample"]] = result
        except (KeyError, TypeError) as error:
            raise EvaluateError(
                f"{path}, line {number}, is not a result of an evaluation: {error!r}"
            ) from error
    return rows


def directories(path: Path) -> set[str]:
    """Every rollout that a line of a file that was `read` names, replaced lines included."""
    return {result["run_dir"] for _, result in read_json_lines(path)}


def samples_by_task(rows: Iterable[Row]) -> dict[str, list[bool]]:
    """task -> resolved, one per sample, infrastructure faults left out."""
    samples: dict[str, list[bool]] = {}
    for result in rows:
        if not is_fault(result):
            samples.setdefault(result["instance_id"], []).append(result["resolved"])
    return samples


def summarise(
    rows: Iterable[Row],
    settings: EvaluateSettings,
    *,
    model: str,
    data: str,
    trainable: bool,
    args: Mapping[str, Any],
) -> dict[str, Any]:
    """The figures. `total` counts every sample; rates are over the `n` that no infrastructure fault ended.

    Tokens, seconds and cost are of the last attempt at each sample, a fault's included. `trainable` says
    whether the trajectories hold the tokens that the engine sampled.
    """
    everything = list(rows)
    valid = [result for result in everything if not is_fault(result)]
    samples = samples_by_task(valid)
    overall = resolve_rate(samples)
    most = max((len(task) for task in samples.values()), default=0)
    ks = sorted({most} | {2**i for i in range(most.bit_length())}) if most else []
    groups = sorted({result["group"] for result in valid if result["group"] is not None})
    prompt, sampled = (sum(result[name] for result in everything) for name in ("prompt_tokens", "tokens"))
    return {
        "model": model,
        "data": data,
        "total": len(everything),
        "n": overall.n,
        "tasks": len(samples),
        "resolved": overall.resolved,
        "resolve_rate": overall.rate,
        "low": overall.low,
        "high": overall.high,
        "pass_at": {str(k): mean_pass_at_k(samples, k) for k in ks if k <= most},
        "errors": len(everything) - len(valid),
        "no_patch": sum(result["patch_source"] is None for result in valid),
        "avg_steps": _mean(result["n_steps"] for result in valid),
        "avg_elapsed_s": _mean(result["elapsed"] for result in valid),
        "outcomes": dict(Counter(result["exit_status"] for result in everything)),
        "timeouts": sum(result["exit_status"] == Outcome.TIME_LIMIT for result in valid),
        "command_timeouts": sum(result["command_timeouts"] for result in valid),
        "tokens": sampled,
        "prompt_tokens": prompt,
        "cost": settings.cost(prompt, sampled),
        "engine_s": sum(result["engine_s"] for result in everything),
        "sandbox_s": sum(result["elapsed"] for result in everything),
        "trainable": trainable,
        "groups": {group: _group(valid, group) for group in groups},
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "args": dict(args),
    }


def _group(rows: list[Row], group: str) -> dict[str, Any]:
    rate = resolve_rate(samples_by_task(result for result in rows if result["group"] == group))
    return {
        "n": rate.n,
        "resolved": rate.resolved,
        "resolve_rate": rate.rate,
        "low": rate.low,
        "high": rate.high,
    }


def predictions(rows: Mapping[Key, Row], rollouts: Path, model: str) -> Predictions:
    """By task, the patch of its sample 0, which may be empty; faults are left out."""
    found: Predictions = {}
    for (instance_id, sample), result in sorted(rows.items()):
        if sample == 0 and not is_fault(result):
            patch = (rollouts / result["run_dir"] / "patch.diff").read_bytes().decode("utf-8", "replace")
            found[instance_id] = {
                "instance_id": instance_id,
                "model_name_or_path": model,
                "model_patch": patch,
            }
    return found


def _mean(values: Iterable[float]) -> float:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else 0.0
