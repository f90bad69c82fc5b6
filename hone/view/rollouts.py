"""The table of a run's rollouts: filtered, sorted and cut into pages, from memory."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from hone.outcomes import OUTCOME_RULES, Outcome
from hone.rollout.ledger import Entry
from hone.view.reader import RunReader
from hone.view.records import Filter, RolloutRow, RolloutTable, RunKind
from hone.view.runs import count_outcomes
from hone.view.stored import Stored

READ_S = 0.2  # spent on files that were not read yet, for each page of the table


def rollout_table(
    reader: RunReader, chosen: Filter, *, first: int = 0, count: int = 100, read_s: float | None = READ_S
) -> RolloutTable:
    """Return one page of the rollouts that a filter chooses, and the outcomes of all of them.

    The ledger or the results answer at once; what is only in stored files is added as they are read, for up
    to `read_s` in this call (None: all). Raises ValueError for a field to sort by that no row has.
    """
    complete = reader.read_stored(read_s)
    every = rollout_rows(reader)
    found = sort_rows([row for row in every if matches(row, chosen)], chosen.sort)
    return RolloutTable(
        rows=tuple(found[first : first + count]),
        first=first,
        found=len(found),
        total=len(every),
        outcomes=count_outcomes(row.outcome for row in found if row.outcome is not None),
        complete=complete,
    )


def rollout_rows(reader: RunReader) -> Sequence[RolloutRow]:
    """Return a row of every rollout of a run, in order of dispatch, with what is known of it so far."""
    kind = reader.kind
    if kind is RunKind.TRAINING:
        source: Any = reader.entries()
    else:
        source = reader.results() if kind is RunKind.EVALUATION else reader.names()
    return reader.remember(("rows", kind, id(source), reader.stored_count), source, lambda: _rows(reader))


def rows_read(reader: RunReader, chosen: Callable[[RolloutRow], bool]) -> tuple[RolloutRow, ...]:
    """Return the chosen rows of a run after their files were read, so that nothing about them is unknown."""
    names = [row.directory for row in rollout_rows(reader) if row.directory is not None and chosen(row)]
    reader.read_stored(names=names)
    return tuple(row for row in rollout_rows(reader) if chosen(row))


def find_row(reader: RunReader, directory: str) -> RolloutRow | None:
    """Return the row of a stored rollout; None: the run does not know it."""
    return next((row for row in rollout_rows(reader) if row.directory == directory), None)


def _rows(reader: RunReader) -> tuple[RolloutRow, ...]:
    kind = reader.kind
    if kind is RunKind.TRAINING:
        is_resolved = reader.resolved_test()
        return tuple(_of_entry(e, reader.stored(e.directory or ""), is_resolved) for e in reader.entries())
    if kind is RunKind.EVALUATION:
        return tuple(_of_result(r, reader.stored(r["run_dir"])) for r in reader.results())
    return tuple(_of_name(name, reader.stored(name)) for name in reader.names())


def _of_entry(entry: Entry, stored: Stored | None, is_resolved: Callable[[Entry], bool]) -> RolloutRow:
    outcome = entry.outcome
    seconds = None if entry.ended_at is None else entry.ended_at - entry.dispatched_at
    return RolloutRow(
        directory=entry.directory,
        rollout_id=entry.rollout_id,
        task_id=entry.task_id,
        group_id=entry.group_id,
        index=entry.index,
        step=entry.step,
        sampled_version=entry.sampled_version,
        staleness=entry.staleness,
        outcome=None if outcome is None else outcome.value,
        fault=None if outcome is None else OUTCOME_RULES[outcome].fault.value,
        reward=entry.reward,
        resolved=None if outcome is None else is_resolved(entry),
        disposition=None if entry.disposition is None else entry.disposition.value,
        reason=entry.reason,
        tampered=outcome is Outcome.TAMPERED or (stored is not None and stored.tampered),
        signals=0 if stored is None else stored.signals,
        forks=0 if stored is None else stored.forks,
        turns=None if stored is None else stored.turns,
        sampled_tokens=None if stored is None else stored.sampled_tokens,
        seconds=seconds if stored is None else stored.seconds,
        dispatched_at=entry.dispatched_at,
    )


def _of_result(result: Mapping[str, Any], stored: Stored | None) -> RolloutRow:
    outcome, name = Outcome(result["exit_status"]), result["run_dir"]
    return RolloutRow(
        directory=name,
        rollout_id=f"{result['instance_id']}-{result['sample']}" if stored is None else stored.rollout_id,
        task_id=result["instance_id"],
        group_id=result["instance_id"],
        index=result["sample"],
        step=None,
        sampled_version=None,
        staleness=None,
        outcome=outcome.value,
        fault=OUTCOME_RULES[outcome].fault.value,
        reward=result["reward"],
        resolved=result["resolved"],
        disposition=None,
        reason=None,
        tampered=outcome is Outcome.TAMPERED or (stored is not None and stored.tampered),
        signals=0 if stored is None else stored.signals,
        forks=0 if stored is None else stored.forks,
        turns=result["n_steps"],
        sampled_tokens=result["tokens"],
        seconds=result["elapsed"],
        dispatched_at=_saved_at(name, result["elapsed"]),
    )


def _of_name(name: str, stored: Stored | None) -> RolloutRow:
    outcome = None if stored is None else stored.outcome
    return RolloutRow(
        directory=name,
        rollout_id=name if stored is None else stored.rollout_id,
        task_id=re.sub(r"(__g\d+__i\d+)?__\d+$", "", name) if stored is None else stored.task_id,
        group_id="" if stored is None else stored.group_id,
        index=0 if stored is None else stored.index,
        step=None,
        sampled_version=None,
        staleness=None,
        outcome=None if outcome is None else outcome.value,
        fault=None if outcome is None else OUTCOME_RULES[outcome].fault.value,
        reward=None if stored is None else stored.reward,
        resolved=None if stored is None else stored.resolved,
        disposition=None,
        reason=None,
        tampered=stored is not None and stored.tampered,
        signals=0 if stored is None else stored.signals,
        forks=0 if stored is None else stored.forks,
        turns=None if stored is None else stored.turns,
        sampled_tokens=None if stored is None else stored.sampled_tokens,
        seconds=None if stored is None else stored.seconds,
        dispatched_at=_saved_at(name, 0.0 if stored is None else stored.seconds),
    )


def _saved_at(name: str, seconds: float) -> float | None:
    """Return when a rollout began, from the time in its directory's name and its length; Unix time, s."""
    stamp = name.rpartition("__")[2]
    return int(stamp) / 1e9 - seconds if stamp.isdigit() else None


def matches(row: RolloutRow, chosen: Filter) -> bool:
    """Return whether a filter chooses a row; fields that are empty choose all."""
    return (
        (not chosen.task or chosen.task in row.task_id)
        and (not chosen.outcome or row.outcome == chosen.outcome)
        and (not chosen.disposition or row.disposition == chosen.disposition)
        and (chosen.step is None or row.step == chosen.step)
        and (not chosen.group or row.group_id == chosen.group)
        and (chosen.tampered is None or row.tampered == chosen.tampered)
        and (chosen.signals is None or (row.signals > 0) == chosen.signals)
        and (chosen.forks is None or (row.forks > 0) == chosen.forks)
        and _within(row.reward, chosen.min_reward, chosen.max_reward)
        and _within(row.sampled_tokens, chosen.min_tokens, chosen.max_tokens)
    )


def _within(value: float | None, low: float | None, high: float | None) -> bool:
    if low is None and high is None:
        return True
    return value is not None and (low is None or value >= low) and (high is None or value <= high)


def sort_rows(rows: Sequence[RolloutRow], by: str) -> list[RolloutRow]:
    """Return the rows by one field, "-" before it: descending; rows without a value come last.

    Raises ValueError for a field that no row has.
    """
    name = by.removeprefix("-")
    if name not in RolloutRow.__dataclass_fields__:
        fields = ", ".join(RolloutRow.__dataclass_fields__)
        raise ValueError(f"rollouts have no field {name!r} to sort by: choose one of {fields}")

    def value(row: RolloutRow) -> Any:
        return getattr(row, name)

    known = [row for row in rows if value(row) is not None]
    return sorted(known, key=value, reverse=by.startswith("-")) + [row for row in rows if value(row) is None]
