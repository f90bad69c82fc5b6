"""The page of one rollout: conversation, patch, verdict with reasons, time, and its place in the group."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hone.outcomes import OUTCOME_RULES
from hone.rollout.rewards import solved
from hone.rollout.store import load
from hone.types import Checks, Trajectory
from hone.view.advantages import group_advantages
from hone.view.files import OF_ROLLOUT, present, stored_directory
from hone.view.reader import RunReader
from hone.view.reasons import verdict_view
from hone.view.records import DiffLine, RolloutPage, RolloutRow
from hone.view.rollouts import find_row, rollout_rows, rows_read
from hone.view.stored import WORK
from hone.view.tasks import checks_of
from hone.view.turns import lanes, turn_views


def rollout_page(reader: RunReader, directory: str, *, with_task: bool = True) -> RolloutPage:
    """Return the page of the rollout stored in `directory` below rollouts/.

    `with_task`: read the run's tasks, to tell which kind each test is.
    Raises NotFound when the run has no such rollout, StoreError when it is damaged.
    """
    folder = stored_directory(reader, directory)
    trajectory = load(folder)
    page = page_of(trajectory, checks_of(reader, trajectory.task_id) if with_task else None)
    row = _merged(find_row(reader, directory), page.row, directory)
    others = rows_read(reader, lambda each: each.group_id == row.group_id and bool(each.group_id))
    group = tuple(row if each.directory == directory else each for each in others) or (row,)
    advantages = group_advantages(reader, group)
    before, after = _neighbours(rollout_rows(reader), directory)
    return replace(
        page,
        row=row,
        advantage=None if advantages is None else advantages.advantages.get(row.rollout_id),
        group=tuple(sorted(group, key=lambda each: (each.index, each.dispatched_at or 0.0))),
        previous=before,
        next=after,
        files=present(folder, OF_ROLLOUT),
    )


def page_of(trajectory: Trajectory, checks: Checks | None = None) -> RolloutPage:
    """Return the page of a rollout that stands alone, outside of any run."""
    row, sampler = _row(trajectory), trajectory.sampler
    verdict = trajectory.verdict
    return RolloutPage(
        row=row,
        error=trajectory.error,
        turns=turn_views(trajectory),
        patch=diff_lines(trajectory.patch),
        verdict=None if verdict is None else verdict_view(verdict, checks),
        lanes=lanes(trajectory),
        timings=trajectory.timings,
        score=trajectory.scores.final,
        agent=sampler.agent,
        engine=sampler.engine,
        sampling=sampler.sampling,
        seed=trajectory.seed,
        calls=trajectory.calls,
        forks=trajectory.forks,
        signals=trajectory.signals,
        branches=len(trajectory.tree.leaves()),
        advantage=None,
        group=(row,),
        previous=None,
        next=None,
        limits=trajectory.enforced_limits,
        notes=trajectory.notes,
        files=(),
    )


def diff_lines(patch: str) -> tuple[DiffLine, ...]:
    """Return the lines of a patch with their kinds; () for an empty one."""
    lines = patch.rstrip("\n").split("\n") if patch.strip() else ()
    return tuple(DiffLine(kind=line_kind(line), text=line) for line in lines)


def line_kind(line: str) -> str:
    """Return the kind of a diff line: "file", "hunk", "added", "removed" or "context"."""
    if line.startswith(("diff ", "index ", "--- ", "+++ ", "new file", "deleted file", "rename ")):
        return "file"
    kinds = {"@": "hunk", "+": "added", "-": "removed"}
    return kinds.get(line[:1], "context")


def _row(trajectory: Trajectory) -> RolloutRow:
    """Return what the rollout itself tells; the run adds step, index and how it was used."""
    verdict, outcome = trajectory.verdict, trajectory.outcome
    return RolloutRow(
        directory=None,
        rollout_id=trajectory.rollout_id,
        task_id=trajectory.task_id,
        group_id=trajectory.group_id,
        index=0,
        step=None,
        sampled_version=None,
        staleness=None,
        outcome=outcome.value,
        fault=OUTCOME_RULES[outcome].fault.value,
        reward=trajectory.reward,
        resolved=solved(outcome, verdict),
        disposition=None,
        reason=None,
        tampered=verdict is not None and verdict.tampered is not None,
        signals=len(trajectory.signals),
        forks=sum(trajectory.forks.values()),
        turns=len(trajectory.turns),
        sampled_tokens=trajectory.tree.sampled_tokens or sum(c.sampled_tokens for c in trajectory.calls),
        seconds=sum(trajectory.timings.get(stage, 0.0) for stage in WORK) or None,
        dispatched_at=trajectory.started_at,
    )


def _merged(known: RolloutRow | None, own: RolloutRow, directory: str) -> RolloutRow:
    """Return the row of the rollout itself with what only the run knows."""
    if known is None:
        return replace(own, directory=directory)
    return replace(
        own,
        directory=directory,
        group_id=known.group_id,
        index=known.index,
        step=known.step,
        sampled_version=known.sampled_version,
        staleness=known.staleness,
        disposition=known.disposition,
        reason=known.reason,
        dispatched_at=known.dispatched_at,
    )


def _neighbours(rows: Sequence[RolloutRow], directory: str) -> tuple[str | None, str | None]:
    """Return the directories of the stored rollouts before and after one, in order of dispatch."""
    names = [row.directory for row in rows if row.directory is not None]
    if directory not in names:
        return None, None
    at = names.index(directory)
    return (names[at - 1] if at else None), (names[at + 1] if at + 1 < len(names) else None)
