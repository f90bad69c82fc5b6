"""Collect the rollouts of one training step: groups of attempts at tasks, each with a row in the ledger.

    task -> group of n slots -> each slot: rollout, retried after an infrastructure fault -> Group
                                rollouts are stored, then ended in the ledger

On-policy: all rollouts of a step are sampled by the weights that the step starts with. When an interrupted
step is collected again with the same tasks, finished rollouts are reused.

The event loop writes the ledger: a row costs 0.1 ms without an fsync, and no cancellation can come between
the end of a rollout and its row.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hone.environment import prepare_workspace
from hone.outcomes import Outcome
from hone.rollout.episode import Episode, RolloutContext, retry_infrastructure_faults, run_episode
from hone.rollout.errors import RolloutError, StoreError
from hone.rollout.ledger import Entry, Ledger
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.rollout.store import Store
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread, task_group

ZERO_VARIANCE = "constant"  # the ledger's reason for dropping a group whose rewards are all equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one task that share a baseline; none of them ended in an infrastructure fault."""

    group_id: str
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def zero_variance(self) -> bool:
        """Whether all rewards are equal, those of turns included, so that every advantage is 0."""
        return len({(t.reward, frozenset(_nonzero_turn_rewards(t).items())) for t in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """Progress of a step; passed to the callback after each rollout."""

    planned: int  # rollouts the step needs; grows when groups are replaced
    running: int = 0
    ended: int = 0
    solved: int = 0
    reused: int = 0
    faults: int = 0  # infrastructure faults, which are retried


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupSlot:
    """Identity of one rollout of a group, the same for every attempt at it."""

    task: Task
    workspace: Path
    group_id: str
    position: int  # of the group in the step
    index: int  # in the group


@dataclass(slots=True, kw_only=True)
class _Step:
    """State of a step while it is collected."""

    step: int
    version: int
    running: asyncio.Semaphore  # bounds the concurrent rollouts
    progress: RolloutProgress
    reusable: dict[tuple[str, int], Trajectory] = field(default_factory=dict[tuple[str, int], Trajectory])
    attempts: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    faults: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])  # of these attempts
    replaced: set[str] = field(default_factory=set[str])  # zero-variance groups that were dropped


class Dispatcher:
    """Collect the rollouts of a run, one step at a time."""

    def __init__(
        self,
        context: RolloutContext,
        ledger: Ledger,
        store: Store,
        *,
        seed: int,
        progress: Callable[[RolloutProgress], None] = lambda _: None,
    ) -> None:
        self._context = context
        self._settings = context.settings
        self._ledger = ledger
        self._store = store
        self._seed = seed
        self._report = progress
        self._swept = False

    async def collect(
        self, step: int, version: int, tasks: Sequence[Task], spare: Sequence[Task] = ()
    ) -> list[Group]:
        """Return one group per task, in their order; call `ledger.commit_step(step, ...)` after using them.

        A zero-variance group is replaced: the r-th replacement of the i-th group is of task
        `spare[(r - 1) * len(tasks) + i]`. Without such a task, the zero-variance group is returned.
        Cancellation closes every sandbox and ends every rollout in the ledger.

        Raises:
            RolloutError: every attempt at a rollout ended in an infrastructure fault.
            StoreError, LedgerError, TaskError: a rollout, the ledger or a task's repository failed.
        """
        state = _Step(
            step=step,
            version=version,
            running=asyncio.Semaphore(self._settings.concurrent_episodes),
            progress=RolloutProgress(planned=len(tasks) * self._settings.group_size),
        )
        await self._recover(state)
        replacements = self._settings.replace_constant_groups
        async with task_group() as jobs:
            groups = [
                jobs.create_task(
                    self._collect_group(state, i, [task, *spare[i :: len(tasks)][:replacements]])
                )
                for i, task in enumerate(tasks)
            ]
        unused = [trajectory.rollout_id for trajectory in state.reusable.values()]
        self._ledger.drop(unused, "superseded")
        return [group.result() for group in groups]

    async def _recover(self, state: _Step) -> None:
        """Find the rollouts that an interrupted collection of this step finished."""
        if not self._swept:
            named = [entry.directory for entry in self._ledger.entries() if entry.directory]
            await run_in_thread(self._store.sweep, named)
            self._swept = True
        for entry in self._ledger.entries(state.step):
            key = (entry.group_id, entry.index)
            state.attempts[key] += 1
            state.faults[key] += _is_fault(entry.outcome)
            if entry.reason == ZERO_VARIANCE:
                state.replaced.add(entry.group_id)
            if entry.disposition is None:
                trajectory = await run_in_thread(self._reload, entry, state.version)
                if trajectory is not None:
                    state.reusable[key] = trajectory

    def _reload(self, entry: Entry, version: int) -> Trajectory | None:
        if entry.version != version:
            self._ledger.drop([entry.rollout_id], "stale")
            return None
        try:
            return self._store.load(entry.directory or "")
        except StoreError:
            self._ledger.drop([entry.rollout_id], "unreadable")
            return None

    async def _collect_group(self, state: _Step, position: int, candidates: Sequence[Task]) -> Group:
        """Return the first candidate's group with any variance, or else the last candidate's."""
        for turn, task in enumerate(candidates):
            group_id = f"s{state.step}g{position}" + (f"r{turn}" if turn else "")
            last = turn == len(candidates) - 1
            if group_id in state.replaced and not last:
                continue
            group = await self._run_group(state, position, group_id, task)
            if last or not group.zero_variance:
                return group
            self._ledger.drop((t.rollout_id for t in group.trajectories), ZERO_VARIANCE)
            self._advance(state, planned=self._settings.group_size)
        raise ValueError("a group needs at least one candidate task")

    async def _run_group(self, state: _Step, position: int, group_id: str, task: Task) -> Group:
        workspace = await prepare_workspace(task, self._context.provider, self._context.workspaces)
        slots = [
            _GroupSlot(task=task, workspace=workspace, group_id=group_id, position=position, index=index)
            for index in range(self._settings.group_size)
        ]
        async with asyncio.TaskGroup() as jobs:
            rollouts = [jobs.create_task(self._fill_slot(state, slot)) for slot in slots]
        return Group(
            group_id=group_id, task=task, trajectories=tuple(rollout.result() for rollout in rollouts)
        )

    async def _fill_slot(self, state: _Step, slot: _GroupSlot) -> Trajectory:
        """Return a rollout without an infrastructure fault. Raises RolloutError after `attempts` faults."""
        known = state.reusable.get((slot.group_id, slot.index))
        if known is not None and known.task_id == slot.task.id:
            del state.reusable[slot.group_id, slot.index]
            self._advance(state, reused=1, ended=1, solved=solved(known.outcome, known.verdict))
            return known
        trajectory = await retry_infrastructure_faults(partial(self._run_slot, state, slot), self._settings)
        if is_infrastructure_fault(trajectory.outcome):
            raise RolloutError(
                f"task {slot.task.id}: {self._settings.attempts} rollouts in a row ended in infrastructure "
                f"faults, the last in {trajectory.outcome} ({trajectory.error}); fix that (`hone doctor` "
                "helps) and run the same command again"
            )
        return trajectory

    async def _run_slot(self, state: _Step, slot: _GroupSlot) -> Trajectory:
        """Run one rollout, with a row in the ledger from its first moment to its end.

        An attempt after an interrupted one has its seed, so a run that was killed equals one that was not.
        """
        key = slot.group_id, slot.index
        rollout_id = _attempt_name(slot, state.attempts[key])
        state.attempts[key] += 1
        episode = Episode(
            task=slot.task,
            rollout_id=rollout_id,
            group_id=slot.group_id,
            workspace=slot.workspace,
            seed=seed_of(self._seed, _attempt_name(slot, state.faults[key])),
        )
        async with state.running:
            self._ledger.dispatch(
                rollout_id,
                group_id=slot.group_id,
                index=slot.index,
                task_id=slot.task.id,
                step=state.step,
                version=state.version,
            )
            self._advance(state, running=1)
            try:
                trajectory = await run_episode(episode, self._context)
                directory = await run_in_thread(
                    self._store.save, trajectory, group=slot.position, index=slot.index
                )
            except BaseException as error:  # re-raised; the rollout still ends in the ledger
                stopped = isinstance(error, asyncio.CancelledError)
                reason = "cancelled" if stopped else f"crashed: {type(error).__name__}"
                self._ledger.end(rollout_id, Outcome.CANCELLED, reason=reason)
                raise
            self._ledger.end(rollout_id, trajectory.outcome, reward=trajectory.reward, directory=directory)
        state.faults[key] += _is_fault(trajectory.outcome)
        self._count(state, trajectory)
        return trajectory

    def _count(self, state: _Step, trajectory: Trajectory) -> None:
        if is_infrastructure_fault(trajectory.outcome):
            self._advance(state, running=-1, faults=1)
        else:
            self._advance(state, running=-1, ended=1, solved=solved(trajectory.outcome, trajectory.verdict))

    def _advance(self, state: _Step, **more: int) -> None:
        now = state.progress
        state.progress = replace(now, **{name: getattr(now, name) + by for name, by in more.items()})
        self._report(state.progress)


def _attempt_name(slot: _GroupSlot, earlier: int) -> str:
    return f"{slot.group_id}-{slot.index}" + (f"-{earlier}" if earlier else "")


def _is_fault(outcome: Outcome | None) -> bool:
    """Return whether an attempt ended in an infrastructure fault of its own, not with the run."""
    return outcome is not None and outcome is not Outcome.CANCELLED and is_infrastructure_fault(outcome)


def _nonzero_turn_rewards(trajectory: Trajectory) -> dict[int, float]:
    return {index: reward for index, reward in trajectory.turn_rewards.items() if reward}


def seed_of(*parts: object) -> int:
    """Return a seed in [0, 2^63) that is a function of all parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
