"""Detect steps that train nothing, and say why from the metrics of the step.

A step is idle when it makes no optimiser step. The run stops after `train.max_idle_steps` idle steps in a
row: further ones would cost as much and change nothing. A run of idle steps only has learnt nothing, and
fails however short it is.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from hone.outcomes import Outcome
from hone.train.errors import NothingLearnt, TrainError
from hone.train.metrics import read_metrics

ADVICE: Mapping[str, str] = {
    Outcome.TURN_LIMIT: "raise agent.turn_limit",
    Outcome.CONTEXT_LIMIT: "raise engine.context_tokens",
    Outcome.TIME_LIMIT: "raise rollout.time_limit_s",
    Outcome.TOKEN_LIMIT: "raise agent.token_limit",
    Outcome.FORMAT_LIMIT: "train the model with `hone sft` first, so that it follows the agent's format",
}
"""Outcome -> what to change when most rollouts of an idle step ended with it."""


def idle_steps_before(run_dir: Path, step: int) -> int:
    """Return how many steps in a row before `step` trained nothing, from the metrics of the run."""
    previous = [record for record in read_metrics(run_dir) if record["step"] == step - 1]
    return int(previous[-1].get("idle_steps") or 0) if previous else 0


def count_idle(metrics: Mapping[str, float], before: int) -> dict[str, float]:
    """Return the metric `idle_steps`: idle steps in a row, the step of `metrics` included."""
    return {"idle_steps": 0 if metrics["optimizer_steps"] else before + 1}


def check_idle(metrics: Mapping[str, float], step: int, limit: int) -> str | None:
    """Return a warning for the first idle step in a row, None for any other step below the limit.

    Raises TrainError when `idle_steps` has reached `limit`. `metrics` are those of the trained step.
    """
    idle = int(metrics["idle_steps"])
    if idle >= limit:
        raise TrainError(
            f"nothing was trained in {idle} step{'s' if idle > 1 else ''} in a row (train.max_idle_steps is "
            f"{limit}): {idle_reason(metrics)}"
        )
    if idle == 1:
        return f"step {step} trained nothing, and the run stops after {limit} such steps: " + idle_reason(
            metrics
        )
    return None


def require_trained(run_dir: Path) -> str | None:
    """Return how many of the run's steps trained nothing, and why the last of them; None if all trained.

    Raises NothingLearnt if no step trained anything.
    """
    steps = read_metrics(run_dir)
    idle = [metrics for metrics in steps if not metrics["optimizer_steps"]]
    if not idle:
        return None
    reason = idle_reason({name: value or 0 for name, value in idle[-1].items()})  # null: not finite
    if len(idle) == len(steps):
        raise NothingLearnt(
            f"nothing was learnt: none of the {len(steps)} steps in {run_dir} changed a weight; in the last, "
            f"{reason}"
        )
    return f"{len(idle)} of {len(steps)}; in the last of them, {reason}"


def idle_reason(metrics: Mapping[str, float]) -> str:
    """Return why a step made no optimiser step, with the numbers, and what to change.

    Example: "the rewards were equal within each of the 8 groups (0 of 64 rollouts resolved, mean reward
    -1.00; 64 of 64 ended with context_limit): raise engine.context_tokens".
    """
    excluded = int(metrics.get("excluded", 0))
    counted = int(metrics["rollouts"]) - excluded
    masked = int(metrics.get("masked", 0))
    if not counted:
        return f"infrastructure faults ended all {excluded} rollouts: run `hone doctor`"
    if masked == counted:
        advice = _advice(metrics) or "raise the limits"
        return (
            f"all {masked} rollouts were masked ({_outcomes(metrics)}): {advice}, or remove the outcome from "
            "rollout.masked"
        )
    if not metrics["samples"]:
        return (
            f"none of the {counted} rollouts sampled a token ({_outcomes(metrics)}): "
            f"{_advice(metrics) or 'look at one with `hone show`'}"
        )
    if metrics.get("skipped/non_finite_gradient"):
        return "every gradient was not finite: lower train.optimizer.lr, or train in float32"
    if metrics["zero_variance_groups"] == metrics["groups"]:
        return _no_variance(metrics, counted)
    advice = _advice(metrics) or "raise the limits"
    return (
        f"every rollout whose reward differs from its group was masked or sampled no token ({masked} masked; "
        f"{_outcomes(metrics)}): {advice}, or remove the outcome from rollout.masked"
    )


def _no_variance(metrics: Mapping[str, float], counted: int) -> str:
    rate, groups = metrics["resolve_rate"], int(metrics["groups"])
    if groups == counted:
        return "a group of one rollout has no baseline: raise rollout.group_size to 2 or more"
    fallback = "choose easier tasks or a stronger model" if rate < 0.5 else "choose harder tasks"
    advice = _advice(metrics) or f"{fallback}, or raise rollout.group_size"
    return (
        f"the rewards were equal within each of the {groups} groups ({round(rate * counted)} of {counted} "
        f"rollouts resolved, mean reward {metrics['reward']:+.2f}; {_outcomes(metrics)}): {advice}"
    )


def _advice(metrics: Mapping[str, float]) -> str:
    """Return the advice for the outcome of more than half of the rollouts, or ""."""
    for outcome, advice in ADVICE.items():
        if 2 * metrics.get(f"outcome/{outcome}", 0) > metrics["rollouts"]:
            return advice
    return ""


def _outcomes(metrics: Mapping[str, float]) -> str:
    """Return the rollouts by outcome, the commonest first, as in "12 of 12 ended with context_limit"."""
    counts = {k.removeprefix("outcome/"): int(n) for k, n in metrics.items() if k.startswith("outcome/")}
    total = int(metrics["rollouts"])
    shown = sorted(counts.items(), key=lambda item: (-item[1], item[0]))[:3]
    return ", ".join(f"{count} of {total} ended with {name}" for name, count in shown)
