"""The files of an evaluation: `results.jsonl` is appended to, the rest is written at the end.

results.jsonl   one line per sample that ended; a later line of the same sample replaces an earlier one
summary.json    the figures
preds.jsonl     the first sample's patch of each task, as SWE-bench's harness reads them
preds.json      the same as one object by id, as mini-swe-agent writes them
report.html     the figures as a page, by `hone.view`
rollouts/       the trajectories
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from hone.evaluate.errors import EvaluateError
from hone.evaluate.settings import EvaluateSettings
from hone.evaluate.statistics import mean_pass_at_k, resolve_rate
from hone.outcomes import Outcome
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.types import Trajectory
from hone.utils.errors import writing
from hone.utils.jsonl import append_json, read_json_lines

Result = dict[str, Any]  # one line of results.jsonl
Key = tuple[str, int]  # instance_id, sample
Predictions = dict[str, dict[str, str]]  # instance_id -> a SWE-bench prediction


def row(trajectory: Trajectory, sample: int, group: str | None, run_dir: str) -> Result:
    """Return the result of one sample; `elapsed` is the time in seconds for which it held a sandbox."""
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
    """Return the prompt and sampled tokens of all calls, as counted by the engine."""
    calls = trajectory.calls
    return sum(call.prompt_tokens for call in calls), sum(call.sampled_tokens for call in calls)


def is_fault(result: Result) -> bool:
    """Return whether an infrastructure fault ended the sample, so that it must run again."""
    return is_infrastructure_fault(Outcome(result["exit_status"]))


def append(path: Path, result: Result) -> None:
    """Append one line. Raises EvaluateError on a full disk."""
    with writing(path, EvaluateError):
        append_json(path, result)


def read(path: Path) -> dict[Key, Result]:
    """Return the last line of each sample; {} where there is no file. A partial last line is left out.

    Raises EvaluateError, which names the line that is not a result.
    """
    rows: dict[Key, Result] = {}
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
    """Return the rollout directories that the results name, those of replaced lines included."""
    return {result["run_dir"] for _, result in read_json_lines(path)}


def samples_by_task(rows: Iterable[Result]) -> dict[str, list[bool]]:
    """Return task -> resolved, one per sample, without infrastructure faults."""
    samples: dict[str, list[bool]] = {}
    for result in rows:
        if not is_fault(result):
            samples.setdefault(result["instance_id"], []).append(result["resolved"])
    return samples


def summarise(
    rows: Iterable[Result],
    settings: EvaluateSettings,
    *,
    model: str,
    data: str,
    trainable: bool,
    args: Mapping[str, Any],
    uses_policy: bool = False,
) -> dict[str, Any]:
    """Return the figures. `total` counts all samples; rates are over the `n` without infrastructure faults.

    Tokens, seconds and cost are of the last attempt at each sample, faults included. `trainable`: whether
    the trajectories hold the tokens that the engine sampled. `problem`: why the figures say nothing about the
    agent, and what to do; None if they do.
    """
    all_results = list(rows)
    valid = [result for result in all_results if not is_fault(result)]
    samples = samples_by_task(valid)
    overall = resolve_rate(samples)
    most = max((len(task) for task in samples.values()), default=0)
    ks = sorted({most} | {2**i for i in range(most.bit_length())}) if most else []
    pass_at = {str(k): mean for k in ks if (mean := mean_pass_at_k(samples, k)) is not None}
    groups = sorted({result["group"] for result in valid if result["group"] is not None})
    prompt, sampled = (sum(result[name] for result in all_results) for name in ("prompt_tokens", "tokens"))
    return {
        "model": model,
        "data": data,
        "total": len(all_results),
        "n": overall.n,
        "tasks": len(samples),
        "resolved": overall.resolved,
        "resolve_rate": overall.rate,
        "low": overall.low,
        "high": overall.high,
        "pass_at": {k: each.mean for k, each in pass_at.items()},
        "pass_at_interval": {k: [each.low, each.high] for k, each in pass_at.items()},
        "errors": len(all_results) - len(valid),
        "no_patch": sum(result["patch_source"] is None for result in valid),
        "avg_steps": _mean(result["n_steps"] for result in valid),
        "avg_elapsed_s": _mean(result["elapsed"] for result in valid),
        "outcomes": dict(Counter(result["exit_status"] for result in all_results)),
        "timeouts": sum(result["exit_status"] == Outcome.TIME_LIMIT for result in valid),
        "command_timeouts": sum(result["command_timeouts"] for result in valid),
        "tokens": sampled,
        "prompt_tokens": prompt,
        "cost": settings.cost(prompt, sampled),
        "engine_s": sum(result["engine_s"] for result in all_results),
        "sandbox_s": sum(result["elapsed"] for result in all_results),
        "trainable": trainable,
        "problem": _problem(all_results, trainable=trainable, uses_policy=uses_policy),
        "groups": {group: _group(valid, group) for group in groups},
        "timestamp": datetime.now(UTC).isoformat(timespec="seconds"),
        "args": dict(args),
    }


def _problem(rows: list[Result], *, trainable: bool, uses_policy: bool) -> str | None:
    """Return why an evaluation has measured nothing; None if it has measured something."""
    outcomes = Counter(result["exit_status"] for result in rows)
    ended = ", ".join(f"{number} with {name}" for name, number in outcomes.most_common())
    if rows and all(map(is_fault, rows)):
        errors = Counter(result["error"] for result in rows if result["error"]).most_common(1)
        common = f"; the commonest error: {errors[0][0]}" if errors else ""
        return (
            f"nothing was measured: an infrastructure fault ended every sample ({len(rows)} of {len(rows)}: "
            f"{ended}{common}): run `hone doctor`, then the same command again to retry them"
        )
    silent = all(not result["tokens"] and (trainable or not result["n_steps"]) for result in rows)
    if uses_policy and rows and silent:
        advice = "look at one of its rollouts with `hone view`"
        if outcomes.most_common(1)[0][0] == Outcome.CONTEXT_LIMIT:
            advice = "the prompts do not fit, so raise engine.context_tokens"
        return f"nothing was measured: no sample has a token of the policy (ended {ended}): {advice}"
    return None


def _group(rows: list[Result], group: str) -> dict[str, Any]:
    rate = resolve_rate(samples_by_task(result for result in rows if result["group"] == group))
    return {
        "n": rate.n,
        "resolved": rate.resolved,
        "resolve_rate": rate.rate,
        "low": rate.low,
        "high": rate.high,
    }


def predictions(rows: Mapping[Key, Result], rollouts: Path, model: str) -> Predictions:
    """Return task -> patch of its sample 0, which may be empty, without infrastructure faults."""
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
