"""The rollouts of one training step: groups of attempts at tasks, each accounted for.

    task -> group of n places -> each place: rollout, again after an infrastructure fault -> Group
                                 rollouts are stored, then ended in the ledger

On-policy: a step's rollouts are all sampled by the weights the step starts with. A step that was interrupted
and is collected again with the same tasks reuses every rollout that had finished.

The ledger is written on the event loop: without a flush a row costs 0.1 ms, and no cancellation can come
between a rollout's end and its row.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import cast

from hone.environment import prepare_workspace
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.errors import RolloutError, StoreError
from hone.rollout.ledger import Entry, Ledger
from hone.rollout.rewards import solved
from hone.rollout.store import Store
from hone.types import Task, Trajectory
from hone.utils.concurrency import run_in_thread

ZERO_VARIANCE = "constant"  # the ledger's reason for rollouts of a group whose rewards are all equal


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """The rollouts of one task that share a baseline; none of them ended in an infrastructure fault."""

    group_id: str
    task: Task
    trajectories: tuple[Trajectory, ...]

    @property
    def zero_variance(self) -> bool:
        """Whether all rewards are equal, those of turns included: every advantage is then 0."""
        return len({(t.reward, frozenset(_earning(t).items())) for t in self.trajectories}) == 1


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutProgress:
    """How far a step is; given to the callback after each rollout."""

    planned: int  # rollouts the step needs; grows when groups are replaced
    running: int = 0
    ended: int = 0
    solved: int = 0
    reused: int = 0
    faults: int = 0  # infrastructure faults, whose places are filled again


@dataclass(frozen=True, slots=True, kw_only=True)
class _GroupSlot:
    """One place of a group, to be filled with a rollout."""

    task: Task
    workspace: Path
    group_id: str
    position: int  # of the group in the step
    index: int  # in the group


@dataclass(slots=True, kw_only=True)
class _Step:
    """What is known of a step while it is collected."""

    step: int
    version: int
    places: asyncio.Semaphore  # bounds the rollouts under way
    progress: RolloutProgress
    reusable: dict[tuple[str, int], Trajectory] = field(default_factory=dict[tuple[str, int], Trajectory])
    tried: Counter[tuple[str, int]] = field(default_factory=Counter[tuple[str, int]])
    replaced: set[str] = field(default_factory=set[str])  # constant groups that were given up


class Dispatcher:
    """Collects the rollouts of a run, one step at a time."""

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
        """One group per task, in their order; call `ledger.commit_step(step, ...)` once they are used.

        The r-th replacement of the i-th group, when all its rewards are equal, is of task
        `spare[(r - 1) * len(tasks) + i]`; where there is none, the constant group is returned.

        Cancelling it closes every sandbox and ends every rollout in the ledger.
        Raises RolloutError when a place cannot be filled, StoreError, LedgerError, TaskError.
        """
        state = _Step(
            step=step,
            version=version,
            places=asyncio.Semaphore(self._settings.concurrent_episodes),
            progress=RolloutProgress(planned=len(tasks) * self._settings.group_size),
        )
        await self._take_up(state)
        replacements = self._settings.replace_constant_groups
        try:
            async with asyncio.TaskGroup() as jobs:
                groups = [
                    jobs.create_task(
                        self._fill_position(state, i, [task, *spare[i :: len(tasks)][:replacements]])
                    )
                    for i, task in enumerate(tasks)
                ]
        except BaseExceptionGroup as failed:
            raise first_error(failed) from failed
        left = [trajectory.rollout_id for trajectory in state.reusable.values()]
        self._ledger.drop(left, "superseded")
        return [group.result() for group in groups]

    async def _take_up(self, state: _Step) -> None:
        """Find what an interrupted collection of this step left behind."""
        if not self._swept:
            named = [entry.directory for entry in self._ledger.entries() if entry.directory]
            await run_in_thread(self._store.sweep, named)
            self._swept = True
        for entry in self._ledger.entries(state.step):
            key = (entry.group_id, entry.place)
            state.tried[key] += 1
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

    async def _fill_position(self, state: _Step, position: int, candidates: Sequence[Task]) -> Group:
        """The first candidate's group with any variance, or else the last candidate's."""
        for turn, task in enumerate(candidates):
            group_id = f"s{state.step}g{position}" + (f"r{turn}" if turn else "")
            last = turn == len(candidates) - 1
            if group_id in state.replaced and not last:
                continue
            group = await self._fill_group(state, position, group_id, task)
            if last or not group.zero_variance:
                return group
            self._ledger.drop((t.rollout_id for t in group.trajectories), ZERO_VARIANCE)
            self._advance(state, planned=self._settings.group_size)
        raise ValueError("a position needs at least one candidate")

    async def _fill_group(self, state: _Step, position: int, group_id: str, task: Task) -> Group:
        workspace = await prepare_workspace(task, self._context.provider, self._context.workspaces)
        places = [
            _GroupSlot(task=task, workspace=workspace, group_id=group_id, position=position, index=index)
            for index in range(self._settings.group_size)
        ]
        async with asyncio.TaskGroup() as jobs:
            rollouts = [jobs.create_task(self._fill_place(state, place)) for place in places]
        return Group(
            group_id=group_id, task=task, trajectories=tuple(rollout.result() for rollout in rollouts)
        )

    async def _fill_place(self, state: _Step, place: _GroupSlot) -> Trajectory:
        """A rollout without an infrastructure fault. Raises RolloutError after `attempts` faults."""
        known = state.reusable.get((place.group_id, place.index))
        if known is not None and known.task_id == place.task.id:
            del state.reusable[place.group_id, place.index]
            self._advance(state, reused=1, ended=1, solved=solved(known.outcome, known.verdict))
            return known
        attempts = self._settings.attempts
        for attempt in range(attempts):
            trajectory = await self._roll_out(state, place)
            if OUTCOME_RULES[trajectory.outcome].fault is not Fault.INFRASTRUCTURE:
                return trajectory
            if attempt == attempts - 1:
                raise RolloutError(
                    f"task {place.task.id}: {attempts} rollouts in a row ended in infrastructure faults, the "
                    f"last in {trajectory.outcome} ({trajectory.error}); mend that, `hone doctor` helps, and "
                    "run the same command again"
                )
            await asyncio.sleep(self._settings.retry_delay_s * 2**attempt)
        raise ValueError("attempts must be at least 1")

    async def _roll_out(self, state: _Step, place: _GroupSlot) -> Trajectory:
        """One rollout, in the ledger from its first moment to its end."""
        tried = state.tried[place.group_id, place.index]
        state.tried[place.group_id, place.index] += 1
        rollout_id = f"{place.group_id}-{place.index}" + (f"-{tried}" if tried else "")
        episode = Episode(
            task=place.task,
            rollout_id=rollout_id,
            group_id=place.group_id,
            workspace=place.workspace,
            seed=seed_of(self._seed, rollout_id),
        )
        async with state.places:
            self._ledger.dispatch(
                rollout_id,
                group_id=place.group_id,
                place=place.index,
                task_id=place.task.id,
                step=state.step,
                version=state.version,
            )
            self._advance(state, running=1)
            try:
                trajectory = await run_episode(episode, self._context)
                directory = await run_in_thread(
                    self._store.save, trajectory, group=place.position, index=place.index
                )
            except BaseException as error:  # whatever it is, it passes through; the rollout still ends
                stopped = isinstance(error, asyncio.CancelledError)
                reason = "cancelled" if stopped else f"crashed: {type(error).__name__}"
                self._ledger.end(rollout_id, Outcome.CANCELLED, reason=reason)
                raise
            self._ledger.end(rollout_id, trajectory.outcome, reward=trajectory.reward, directory=directory)
        self._count(state, trajectory)
        return trajectory

    def _count(self, state: _Step, trajectory: Trajectory) -> None:
        if OUTCOME_RULES[trajectory.outcome].fault is Fault.INFRASTRUCTURE:
            self._advance(state, running=-1, faults=1)
        else:
            self._advance(state, running=-1, ended=1, solved=solved(trajectory.outcome, trajectory.verdict))

    def _advance(self, state: _Step, **more: int) -> None:
        now = state.progress
        state.progress = replace(now, **{name: getattr(now, name) + by for name, by in more.items()})
        self._report(state.progress)


def _earning(trajectory: Trajectory) -> dict[int, float]:
    return {index: reward for index, reward in trajectory.turn_rewards.items() if reward}


def seed_of(*parts: object) -> int:
    """A seed in [0, 2^63) that depends on every part and on nothing else."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1


def first_error(error: BaseException) -> BaseException:
    """The first error in a group of groups; the others are its consequences or as good."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error
