"""Print a run: its counts, then its learning curve."""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path
from typing import Any

from hone.cli.output import console, print_fields, print_json, print_table
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import Entry, Ledger
from hone.train.metrics import read_metrics

ROWS = 20  # maximum steps printed, evenly spaced
BAR = 20  # columns of a full bar
BLOCKS = " ▏▎▍▌▋▊▉█"


def print_run(run: Path, *, as_json: bool) -> None:
    """Print a run. Raises LedgerError if the counts of the ledger do not balance."""
    with Ledger.read(run) as ledger:
        balance, entries = ledger.balance(), ledger.entries()
    counts = {
        "dispatched": balance.dispatched,
        "trained": balance.trained,
        "masked": balance.masked,
        "dropped": dict(balance.dropped),
        "in_flight": balance.in_flight,
        "steps": balance.steps,
    }
    if as_json:
        print_json(counts)
        return
    print_fields({"run": run, **counts})
    rows = curve(entries, read_metrics(run))
    if not rows:
        console().print("No step is finished.")
        return
    headers = ["step", "rollouts", "reward", "resolved", "", "turns", "loss", "entropy", "grad norm"]
    print_table(headers, [_row(rows[i]) for i in _spread(len(rows))])
    console().print(f"To print one rollout: hone show {run}/{_example(entries)}")


def curve(entries: list[Entry], metrics: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return one record per step with rewards, from the ledger and the metrics."""
    by_step: dict[int, list[Entry]] = defaultdict(list)
    for entry in entries:
        if (
            entry.outcome is not None
            and OUTCOME_RULES[entry.outcome].in_baseline
            and entry.reward is not None
        ):
            by_step[entry.step].append(entry)
    measured = {record["step"]: record for record in metrics}
    return [
        {
            **measured.get(step, {}),
            "step": step,
            "rollouts": len(ended),
            "reward": sum(entry.reward or 0.0 for entry in ended) / len(ended),
            "resolve_rate": measured.get(step, {}).get(
                "resolve_rate", sum(entry.outcome is Outcome.RESOLVED for entry in ended) / len(ended)
            ),
        }
        for step, ended in sorted(by_step.items())
    ]


def bar(fraction: float) -> str:
    """Return a bar of up to `BAR` columns, rounded to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, fraction)) * BAR * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def _row(record: dict[str, Any]) -> list[str]:
    def number(name: str, form: str) -> str:
        return format(record[name], form) if record.get(name) is not None else "-"

    return [
        str(record["step"]),
        str(record["rollouts"]),
        number("reward", "+.3f"),
        f"{100 * record['resolve_rate']:.1f} %",
        bar(record["resolve_rate"]),
        number("turns", ".1f"),
        number("loss", ".4f"),
        number("entropy", ".3f"),
        number("grad_norm", ".3f"),
    ]


def _spread(count: int) -> list[int]:
    if count <= ROWS:
        return list(range(count))
    return sorted({round(i * (count - 1) / (ROWS - 1)) for i in range(ROWS)})


def _example(entries: list[Entry]) -> str:
    stored = [entry.directory for entry in entries if entry.directory]
    return stored[-1] if stored else "ROLLOUT"
