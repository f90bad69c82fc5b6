"""Print a run, its counts, learning curve and rollouts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from hone.cli.output import console, print_fields, print_json, print_table
from hone.cli.summary import rate
from hone.rollout.ledger import Entry, Ledger
from hone.view.curve import bottleneck, busy, curve, mean_of, staleness
from hone.view.reader import RunReader
from hone.view.records import Filter, RolloutRow
from hone.view.rollouts import rollout_table
from hone.view.runs import count_outcomes
from hone.view.values import json_ready

ROWS = 20  # maximum steps printed, evenly spaced
BAR = 20  # columns of a full bar
BLOCKS = " ▏▎▍▌▋▊▉█"


def print_run(reader: RunReader, *, as_json: bool) -> None:
    """Print a run. Raises LedgerError if the counts of the ledger do not balance."""
    run = reader.directory
    with Ledger.read(run) as ledger:
        balance = ledger.balance()
    entries, metrics = reader.entries(), reader.metrics()
    counts = {
        "dispatched": balance.dispatched,
        "trained": balance.trained,
        "masked": balance.masked,
        "dropped": dict(balance.dropped),
        "in_flight": balance.in_flight,
        "steps": balance.steps,
        "outcomes": count_outcomes(entry.outcome.value for entry in entries if entry.outcome is not None),
        "staleness": staleness(entries),
        "set_aside": {aside.task_id: aside.reason for aside in reader.tasks_set_aside()},
        "busy": busy(metrics),
        "parked": round(mean_of(metrics, "parked"), 3),
    }
    rows, validations = curve(entries, metrics), reader.metrics("validation")
    if as_json:
        print_json(json_ready(counts | {"curve": rows, "validations": validations}))
        return
    print_fields({"run": run, **counts})
    if shares := busy(metrics):
        console().print(bottleneck(shares, metrics), markup=False)
    if not rows:
        console().print("No step is finished.")
        return
    headers = ["step", "rollouts", "reward", "resolved", "", "turns", "loss", "entropy", "grad norm"]
    print_table(headers, [_step_row(rows[i]) for i in _spread(len(rows))])
    _print_validations(validations)
    console().print(f"To print one rollout: hone show {run}/{_example(entries)}", markup=False)


def print_stored(reader: RunReader, *, as_json: bool) -> None:
    """Print the outcomes of a run whose steps another trainer keeps, so that it has no ledger."""
    run, endings = reader.directory, reader.store.endings()
    rewards = [reward for _, reward in endings if reward is not None]
    counts = {
        "rollouts": len(endings),
        "reward": round(sum(rewards) / len(rewards), 3) if rewards else None,
        "outcomes": dict(Counter(outcome.value for outcome, _ in endings).most_common()),
    }
    if as_json:
        print_json(counts)
        return
    print_fields({"run": run, **counts})
    if names := reader.names():
        console().print(f"To print one rollout: hone show {run}/{names[-1]}", markup=False)


def print_rollouts(reader: RunReader, chosen: Filter, *, limit: int, as_json: bool) -> None:
    """Print the first `limit` rollouts that a filter chooses. Raises ValueError for a field no row has."""
    table = rollout_table(reader, chosen, count=limit, read_s=None)
    if as_json:
        print_json(json_ready(table))
        return
    if not table.found:
        console().print(f"None of the {table.total} rollouts is like that.", markup=False)
        return
    print_fields({"rollouts": f"{table.found} of {table.total}", "outcomes": table.outcomes})
    print_rows(table.rows)
    if table.found > limit:
        console().print(f"{table.found - limit} more: pass --limit {table.found} to see all.", markup=False)
    stored = [row.directory for row in table.rows if row.directory is not None]
    if stored:
        console().print(f"To print one rollout: hone show {reader.directory}/{stored[0]}", markup=False)


def print_rows(rows: Sequence[RolloutRow], more: Mapping[str, Sequence[str]] | None = None) -> None:
    """Print a line per rollout; `more`: further columns by their headers."""
    headers = ["rollout", "step", "outcome", "reward", "turns", "tokens", "seconds", "use", *(more or {})]
    columns = list((more or {}).values())
    print_table(
        headers,
        [[*_cells(row), *(column[i] for column in columns)] for i, row in enumerate(rows)],
    )


def _cells(row: RolloutRow) -> list[str]:
    marks = [name for name, shown in (("tampered", row.tampered), ("signals", row.signals > 0)) if shown]
    use = row.disposition or ""
    return [
        _short(row),
        "-" if row.step is None else str(row.step),
        ", ".join([row.outcome or "under way", *(mark for mark in marks if mark != row.outcome)]),
        "-" if row.reward is None else f"{row.reward:+g}",
        "-" if row.turns is None else str(row.turns),
        "-" if row.sampled_tokens is None else str(row.sampled_tokens),
        "-" if row.seconds is None else f"{row.seconds:.1f}",
        use if row.reason is None else f"{use}: {row.reason}",
    ]


def _short(row: RolloutRow) -> str:
    """Return the name of a rollout without the time at its end, which is enough to find it."""
    stem = (row.directory or "").rpartition("__")[0]
    return stem if stem and stem != row.task_id else row.directory or row.rollout_id


def bar(fraction: float) -> str:
    """Return a bar of up to `BAR` columns, rounded to an eighth of a column."""
    eighths = round(max(0.0, min(1.0, fraction)) * BAR * 8)
    return "█" * (eighths // 8) + (BLOCKS[eighths % 8] if eighths % 8 else "")


def _print_validations(records: Sequence[Mapping[str, Any]]) -> None:
    if records:
        rows = [
            (str(r["step"]), rate(r), str(r["n"]), bar(r["resolve_rate"]))
            for r in (records[i] for i in _spread(len(records)))
        ]
        print_table(["after step", "resolved", "n", ""], rows, title="Validation (95 % interval)")


def _step_row(record: dict[str, Any]) -> list[str]:
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


def _example(entries: Sequence[Entry]) -> str:
    stored = [entry.directory for entry in entries if entry.directory]
    return stored[-1] if stored else "ROLLOUT"
