"""Print the figures in `summary.json` and `sweep.json` of an evaluation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.cli.output import percent, print_fields, print_json, print_table


def print_evaluation(summary: Mapping[str, Any], *, as_json: bool) -> None:
    """Print the summary of an evaluation, or of a sweep over temperatures."""
    if as_json:
        print_json(summary)
    elif "evaluations" in summary:
        print_sweep(summary)
    else:
        print_summary(summary)


def print_summary(summary: Mapping[str, Any]) -> None:
    from hone.evaluate.words import duration, number

    print_fields(
        {
            "resolve rate": rate(summary),
            "tasks": summary["tasks"],
            "samples": summary["n"],
            "faults": f"{summary['errors']}, not counted; run again to retry them"
            if summary["errors"]
            else None,
            "outcomes": summary["outcomes"],
            "pass@k": {k: interval(p, *summary["pass_at_interval"][k]) for k, p in summary["pass_at"].items()}
            if len(summary["pass_at"]) > 1
            else None,
            "turns": f"{summary['avg_steps']:.1f} on average",
            "tokens": f"{summary['tokens']:,} sampled, {summary['prompt_tokens']:,} of prompts",
            "cost": number(summary["cost"]) if summary["cost"] else None,
            "time": f"{duration(summary['sandbox_s'])} of sandboxes, "
            f"{duration(summary['engine_s'])} of the engine",
            "time-outs": f"{summary['timeouts']} rollouts, {summary['command_timeouts']} commands",
            "trajectories": "without token ids: not usable for training"
            if summary["engine_s"] and not summary["trainable"]
            else None,
            "model": summary["model"],
            "data": summary["data"],
            "files": summary.get("out"),
            "report": f"{summary['out']}/report.html" if "out" in summary else None,
        }
    )
    groups = summary["groups"]
    if len(groups) > 1:
        rows = [(name, rate(group), group["n"]) for name, group in groups.items()]
        print_table(["group", "resolve rate", "n"], rows)


def print_sweep(sweep: Mapping[str, Any]) -> None:
    from hone.evaluate.words import number

    evaluations = sweep["evaluations"]
    ks = sorted({int(k) for each in evaluations for k in each["pass_at"]} - {1})
    rows = [
        [
            f"{each['temperature']:g}",
            rate(each),
            *(percent(each["pass_at"].get(str(k))) for k in ks),
            each["n"],
            each["errors"],
            f"{each['avg_steps']:.1f}",
            each["tokens"],
            number(each["cost"]),
        ]
        for each in evaluations
    ]
    headers = ["temperature", "resolve rate", *(f"pass@{k}" for k in ks)]
    print_table([*headers, "samples", "faults", "turns", "tokens", "cost"], rows)
    print_fields({"model": sweep["model"], "files": sweep["out"], "report": f"{sweep['out']}/report.html"})


def rate(figures: Mapping[str, Any]) -> str:
    """Return a rate with its interval, such as `87.5 % (81.2 to 92.0)`."""
    return interval(figures["resolve_rate"], figures["low"], figures["high"])


def interval(mean: float, low: float, high: float) -> str:
    return f"{percent(mean)} ({100 * low:.1f} to {100 * high:.1f})"
