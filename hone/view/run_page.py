"""The page of a training: curves, outcomes, events, what runs now, and its recipe."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from hone.outcomes import OUTCOME_RULES, Fault
from hone.rollout.ledger import Entry
from hone.view.curve import (
    bottleneck,
    busy,
    in_baseline,
    mean_of,
    outcome_steps,
    rate_point,
    reward_point,
    staleness,
)
from hone.view.panels import panels
from hone.view.reader import RunReader
from hone.view.recipe import differences, parents
from hone.view.records import Event, OutcomeSteps, Panel, Point, RolloutRow, RunKind, Running, RunPage, Series
from hone.view.rollouts import rollout_rows
from hone.view.runs import outcome_totals, run_line

READ_S = 2.0  # spent on stored files where only these tell the outcomes
FAULTS = 200  # most events of single faults; the newest are shown
_INTERRUPTED, _ROLLED_BACK = "interrupted", "rolled_back"


def run_page(reader: RunReader) -> RunPage:
    """Return the page of a training, or of the rollouts of another trainer.

    Raises LedgerError or ValueError for a damaged file.
    """
    entries, metrics = reader.entries(), reader.metrics()
    shares = busy(metrics)
    return RunPage(
        line=run_line(reader),
        counts=counts(reader),
        panels=(*_rewards(reader), *panels(metrics), *_lengths(reader)),
        validations=validations(reader),
        outcomes=outcome_steps(entries) if entries else _stored_outcomes(reader),
        events=events(reader),
        running=running(entries) if reader.is_running else (),
        set_aside={aside.task_id: aside.reason for aside in reader.tasks_set_aside()},
        bottleneck=bottleneck(shares, metrics) if shares else "",
        recipe=reader.recipe(),
        differences=differences(reader),
        parent=", ".join(map(str, parents(reader))),
    )


def counts(reader: RunReader) -> dict[str, Any]:
    """Return how many rollouts were dispatched and how each was used; see `hone.rollout.ledger.Balance`."""
    entries, metrics = reader.entries(), reader.metrics()
    by_use = Counter("in_flight" if e.disposition is None else e.disposition.value for e in entries)
    dropped = Counter(e.reason for e in entries if e.reason is not None)
    return {
        "dispatched": len(entries),
        "trained": by_use["trained"],
        "masked": by_use["masked"],
        "dropped": dict(sorted((str(reason), n) for reason, n in dropped.items())),
        "in_flight": by_use["in_flight"],
        "steps": 0 if reader.last_step is None else reader.last_step + 1,
        "staleness": staleness(entries),
        "parked": round(mean_of(metrics, "parked"), 3),
    }


def validations(reader: RunReader) -> tuple[Point, ...]:
    """Return the resolve rate of each validation with its interval; the step is that of the weights."""
    return tuple(
        Point(step=r["step"], value=r["resolve_rate"], low=r.get("low"), high=r.get("high"))
        for r in reader.metrics("validation")
    )


def _rewards(reader: RunReader) -> tuple[Panel, ...]:
    """Return the panels of reward and resolve rate, with the 95 % interval of each step."""
    if reader.kind is not RunKind.TRAINING:
        return ()
    source = reader.entries()
    return reader.remember(("rewards", id(source)), source, lambda: _reward_panels(reader, source))


def _reward_panels(reader: RunReader, entries: Sequence[Entry]) -> tuple[Panel, ...]:
    by_step = sorted(in_baseline(entries).items())
    if not by_step:
        return ()
    rewards = [entry.reward or 0.0 for _, ended in by_step for entry in ended]
    is_resolved = reader.resolved_test()
    bounds = (min(-1.0, *rewards), max(1.0, *rewards))
    rates = tuple(
        reader.remember_step("rate", step, len(ended), lambda: rate_point(step, ended, is_resolved))  # noqa: B023 - called at once
        for step, ended in by_step
    )
    means = tuple(
        reader.remember_step(f"reward {bounds}", step, len(ended), lambda: reward_point(step, ended, bounds))  # noqa: B023 - called at once
        for step, ended in by_step
    )
    rate = Series(name="resolve_rate", title="resolve rate", unit="%", points=rates)
    reward = Series(name="reward", title="reward", unit="", points=means)
    return (
        Panel(
            title="Resolve rate",
            note="Share of the rollouts of a step that resolve their task; the band is the 95 % interval "
            "over its tasks.",
            series=(rate,),
        ),
        Panel(
            title="Reward",
            note="Mean reward of a step's rollouts without infrastructure faults; the band is the 95 % "
            "interval over its tasks.",
            series=(reward,),
        ),
    )


def _stored_outcomes(reader: RunReader) -> tuple[OutcomeSteps, ...]:
    """Return how many stored rollouts ended in each outcome, where no ledger keeps steps."""
    reader.read_stored(READ_S)
    return outcome_totals(row.outcome for row in rollout_rows(reader) if row.outcome is not None)


def _lengths(reader: RunReader) -> tuple[Panel, ...]:
    """Return the panel of sampled tokens per rollout, of the steps whose rollouts were all read."""
    source = rollout_rows(reader)
    return reader.remember(("lengths", id(source)), source, lambda: _length_panels(source))


def _length_panels(rows: Sequence[RolloutRow]) -> tuple[Panel, ...]:
    lengths: dict[int, list[int | None]] = {}
    for row in rows:
        if row.step is not None and row.directory is not None:
            lengths.setdefault(row.step, []).append(row.sampled_tokens)
    points: list[Point] = []
    for step, found in sorted(lengths.items()):
        known = [tokens for tokens in found if tokens is not None]
        if len(known) == len(found):
            points.append(Point(step=step, value=sum(known) / len(known)))
    if not points:
        return ()
    series = Series(name="sampled_tokens", title="sampled tokens", unit="tokens", points=tuple(points))
    note = "Mean tokens that the policy sampled in a rollout; a rise costs time before it gains reward."
    return (Panel(title="Sampled tokens of a rollout", note=note, series=(series,)),)


def running(entries: Sequence[Entry]) -> tuple[Running, ...]:
    """Return the rollouts under way, the oldest first."""
    return tuple(
        Running(
            rollout_id=entry.rollout_id,
            task_id=entry.task_id,
            group_id=entry.group_id,
            since=entry.dispatched_at,
        )
        for entry in entries
        if entry.outcome is None
    )


def events(reader: RunReader) -> tuple[Event, ...]:
    """Return what happened once in a training, the newest first."""
    if not reader.entries():
        return ()
    every = [*_starts(reader.entries()), *_faults(reader.entries()), *_checkpoints(reader)]
    every += [
        Event(at=aside.at, kind="set aside", text=f"task {aside.task_id} is set aside: {aside.reason}")
        for aside in reader.tasks_set_aside()
    ]
    every += [
        Event(at=r["time"], kind="idle step", text="the step trained nothing", step=r["step"])
        for r in reader.metrics()
        if r.get("idle_steps", 0) > 0
    ]
    return tuple(sorted(every, key=lambda event: -event.at))


def _starts(entries: Sequence[Entry]) -> Iterator[Event]:
    """Yield the start of a run, and each time that it went on after its process had ended."""
    yield Event(at=entries[0].dispatched_at, kind="started", text="the first rollout was dispatched")
    for reason, kind, text in (
        (_INTERRUPTED, "resumed", "the run went on; {} rollouts had been interrupted"),
        (_ROLLED_BACK, "rolled back", "the run went back to its last checkpoint; {} rollouts were dropped"),
    ):
        together: dict[float, int] = {}
        for entry in entries:
            if entry.reason == reason and entry.ended_at is not None:
                at = round(entry.ended_at, 1)
                together[at] = together.get(at, 0) + 1
        if reason == _ROLLED_BACK and together:  # the ledger keeps no time of a rollback
            together = {max(together): sum(together.values())}
        for at, number in together.items():
            yield Event(at=at, kind=kind, text=text.format(number))


def _faults(entries: Sequence[Entry]) -> Iterator[Event]:
    faults = [
        entry
        for entry in entries
        if entry.outcome is not None
        and entry.ended_at is not None
        and OUTCOME_RULES[entry.outcome].fault is Fault.INFRASTRUCTURE
        and entry.reason != _INTERRUPTED
    ]
    for entry in faults[-FAULTS:]:
        yield Event(
            at=entry.ended_at or entry.dispatched_at,
            kind="fault",
            text=f"{entry.task_id}: {entry.outcome}, dropped as {entry.reason}",
            rollout=entry.directory,
        )


def _checkpoints(reader: RunReader) -> Iterator[Event]:
    folder = reader.directory / "checkpoints"
    for path in sorted(folder.glob("step-*")) if folder.is_dir() else ():
        complete, number = path / "COMPLETE", path.name.removeprefix("step-")
        if path.is_symlink() or not complete.is_file() or not number.isdigit():
            continue
        yield Event(
            at=complete.stat().st_mtime, kind="checkpoint", text=f"checkpoint {path.name}", step=int(number)
        )
