"""The page of a group: the rollouts of one task that share a baseline, side by side."""

from __future__ import annotations

from collections.abc import Sequence

from hone.rollout.errors import StoreError
from hone.types import Trajectory
from hone.view.advantages import group_advantages
from hone.view.errors import NotFound
from hone.view.reader import RunReader
from hone.view.records import GroupPage
from hone.view.rollouts import rows_read
from hone.view.turns import turn_views


def group_page(reader: RunReader, group_id: str) -> GroupPage:
    """Return the page of a group. Raises NotFound for a group that the run does not have."""
    found = rows_read(reader, lambda row: row.group_id == group_id and bool(group_id))
    if not found:
        raise NotFound(f"run {reader.name} has no group {group_id!r}")
    rows = sorted(found, key=lambda row: (row.index, row.dispatched_at or 0.0))
    trajectories = [_load(reader, row.directory) for row in rows]
    advantages = group_advantages(reader, rows)
    return GroupPage(
        group_id=group_id,
        task_id=rows[0].task_id,
        rows=tuple(rows),
        advantages=tuple(
            None if advantages is None else advantages.advantages.get(row.rollout_id) for row in rows
        ),
        parts_at=parts_at(trajectories),
        turns=tuple(() if t is None else turn_views(t) for t in trajectories),
    )


def parts_at(trajectories: Sequence[Trajectory | None]) -> tuple[int | None, ...]:
    """Return the turn at which each rollout's replies first differ from those of the first one.

    None: it says the same, or nothing was stored. A rollout that ends earlier parts where it ends.
    """
    replies = [None if t is None else [turn.reply for turn in t.turns] for t in trajectories]
    first = next((each for each in replies if each is not None), [])
    return tuple(None if each is None or each == first else _differ(first, each) for each in replies)


def _differ(first: Sequence[str], other: Sequence[str]) -> int:
    same = zip(first, other, strict=False)
    return next((i for i, (a, b) in enumerate(same) if a != b), min(len(first), len(other)))


def _load(reader: RunReader, directory: str | None) -> Trajectory | None:
    try:
        return None if directory is None else reader.store.load(directory)
    except StoreError:
        return None
