"""The figures of an evaluation, as `summary.json` has them, for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from hone.cli.output import percent, print_facts, print_table


def print_summary(summary: Mapping[str, Any]) -> None:
    print_facts(
        {
            "resolve rate": rate(summary),
            "tasks": summary["tasks"],
            "samples": summary["n"],
            "faults": f"{summary['errors']}, not counted; run again to try them again"
            if summary["errors"]
            else None,
            "outcomes": summary["outcomes"],
            "pass@k": {k: percent(p) for k, p in summary["pass_at"].items()}
            if len(summary["pass_at"]) > 1
            else None,
            "turns": f"{summary['avg_steps']:.1f} on average",
            "tokens": f"{summary['tokens']:,} sampled",
            "time-outs": f"{summary['timeouts']} rollouts, {summary['command_timeouts']} commands",
            "model": summary["model"],
            "data": summary["data"],
            "files": summary.get("out"),
        }
    )
    groups = summary["groups"]
    if len(groups) > 1:
        rows = [(name, rate(group), group["n"]) for name, group in groups.items()]
        print_table(["group", "resolve rate", "n"], rows)


def rate(figures: Mapping[str, Any]) -> str:
    """Such as `87.5 % (81.2 to 92.0)`."""
    low, high = 100 * figures["low"], 100 * figures["high"]
    return f"{percent(figures['resolve_rate'])} ({low:.1f} to {high:.1f})"
