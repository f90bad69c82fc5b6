"""Collect one group: n rollouts of one task, each with a row in the ledger.

    position -> task -> n slots -> each: attempts until one ends without an infrastructure fault -> Group
                 ^                                  |
                 +---- another task, where all rewards are equal or the task is set aside

What an earlier process of the run finished is used again. The event loop writes the ledger: a row costs
0.1 ms without an fsync, and no cancellation can come between the end of a rollout and its row.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from hone.outcomes import Outcome
from hone.rollout.attempts import Attempt, Rollouts
from hone.rollout.curriculum import Curriculum
from hone.rollout.episode import retry_infrastructure_faults
from hone.rollout.errors import RolloutError, StoreError
from hone.rollout.faults import HINT, BrokenTask, FaultBudget, TasksSetAside
from hone.rollout.history import ROLLED_BACK, ZERO_VARIANCE, History, is_fault, read_history
from hone.rollout.ledger import SET_ASIDE, Entry, Ledger
from hone.rollout.order import TaskOrder
from hone.rollout.rewards import is_infrastructure_fault, solved
from hone.rollout.settings import RolloutSettings
from hone.rollout.slots import Slots
from hone.rollout.window import Window
from hone.sandbox.contract import SandboxError
from hone.tasks.errors import TaskError
from hone.types import Task, Trajectory
from hone.utils.concurrency import task_group


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
    """Progress of the groups that are not yet trained; passed to the callback after each rollout."""

    planned: int = 0  # rollouts of the admitted groups
    running: int = 0
    ended: int = 0
    solved: int = 0
    reused: int = 0  # of an earlier process
    faults: int = 0  # infrastructure faults, which are retried
    set_aside: int = 0  # times that a task was set aside


@dataclass(slots=True, kw_only=True)
class _Run:
    """A group while its rollouts are under way."""

    group_id: str
    task: Task
    position: int
    window: Window
    workspace: Path = field(default_factory=Path)
    ended: list[str] = field(default_factory=list[str])  # rollout ids that wait for their step


class GroupCollector:
    """Collects the groups of a run, any number of them at a time."""

    def __init__(
        self,
        rollouts: Rollouts,
        ledger: Ledger,
        order: TaskOrder,
        settings: RolloutSettings,
        *,
        seed: int,
        groups_per_step: int,
        progress: Callable[[RolloutProgress], None] = lambda _: None,
    ) -> None:
        self.version = 0  # of the weights in use
        self._recovered = 0  # the version that the run began or went on with
        self.curriculum = Curriculum(seed, settings.curriculum_visits)
        self._rollouts = rollouts
        self._ledger = ledger
        self._order = order
        self._settings = settings
        self._seed = seed
        self._groups_per_step = groups_per_step
        self._slots = Slots(settings.concurrent_episodes)
        self._budget = FaultBudget(settings.fault_budget)
        self._aside = TasksSetAside(len(order.tasks))
        self._history = History()
        self._progress, self._report = RolloutProgress(), progress

    async def recover(self, step: int) -> History:
        """Read what the ledger knows, before `step`, for which weight version `step` is in use.

        Rollouts that are too old for it are dropped and, with `max_staleness` above 0, those of weights that
        a kill has lost: the step that made them is repeated, maybe with other groups.
        """
        entries, asides = self._ledger.entries(), self._ledger.tasks_set_aside()
        await self._rollouts.sweep([entry.directory for entry in entries if entry.directory])
        history = read_history(entries, asides)
        oldest = step - self._settings.max_staleness
        stale = [key for key, entry in history.open.items() if entry.sampled_version < oldest]
        self._ledger.drop([history.open.pop(key).rollout_id for key in stale], "stale")
        self.version = self._recovered = step
        lost = [key for key, entry in history.open.items() if self._is_lost(entry.sampled_version)]
        self._ledger.drop([history.open.pop(key).rollout_id for key in lost], ROLLED_BACK)
        self._history, self._aside = history, TasksSetAside(len(self._order.tasks), asides)
        self._progress = RolloutProgress()
        self.curriculum = Curriculum(self._seed, self._settings.curriculum_visits)
        for task_id, signal in history.signals():
            self.curriculum.visited(task_id, signal=signal)
        return history

    def _is_lost(self, version: int) -> bool:
        """Return whether a weight version of an earlier process is no more."""
        return self._settings.max_staleness > 0 and version > self._recovered

    async def collect(self, position: int, window: Window) -> Group:
        """Return the group at `position`: of the first task with different rewards, or else of the last one.

        `window`, which has admitted it, is told when its first rollout begins. Cancellation closes every
        sandbox and ends every rollout in the ledger.

        Raises:
            RolloutError: the infrastructure is broken.
            StoreError, LedgerError: a rollout or the ledger failed.
        """
        self._advance(planned=self._settings.group_size)
        candidates = [self._order.task(position), *self._order.replacements(position)]
        replaced = refilled = 0
        while True:
            group_id = self._group_id(position, replaced, refilled)
            last = replaced == len(candidates) - 1
            spent = self._history.spent.get(group_id)
            if spent == SET_ASIDE:
                refilled += 1
                continue
            if spent == ZERO_VARIANCE and not last:
                replaced += 1
                continue
            task = self._task_of(group_id, position, candidates[replaced], refilled)
            run = _Run(group_id=group_id, task=task, position=position, window=window)
            try:
                group = await self._collect_group(run)
            except BrokenTask as broken:
                self._set_aside(run, str(broken))
                refilled += 1
                continue
            self._budget.succeeded()
            self.curriculum.visited(task.id, signal=not group.zero_variance)
            if last or not group.zero_variance:
                return group
            self._ledger.drop(run.ended, ZERO_VARIANCE)
            self.forget(group)
            replaced += 1

    def _group_id(self, position: int, replaced: int, refilled: int) -> str:
        batch, index = divmod(position, self._groups_per_step)
        name = f"s{batch}g{index}"
        return name + (f"r{replaced}" if replaced else "") + (f"x{refilled}" if refilled else "")

    def _task_of(self, group_id: str, position: int, candidate: Task, refilled: int) -> Task:
        """Return the task of a group; the ledger's, if an earlier process began it."""
        known = self._history.tasks.get(group_id)
        for task in self._order.tasks if known is not None else ():
            if task.id == known:
                return task
        aside = self._aside.at(position)
        passed_over = candidate.id in aside or self.curriculum.skips(candidate.id, position)
        if not refilled and not passed_over:
            return candidate
        silent = {task.id for task in self._order.tasks if self.curriculum.skips(task.id, position)}
        task = self._order.refill(position, refilled, aside | silent)
        task = task or self._order.refill(position, refilled, aside)
        if task is None:
            raise RolloutError(
                f"every task is set aside for infrastructure faults; the last: {self._last_aside()}; {HINT}"
            )
        return task

    def _last_aside(self) -> str:
        last = self._ledger.tasks_set_aside()[-1]
        return f"{last.task_id}: {last.reason}"

    def _set_aside(self, run: _Run, reason: str) -> None:
        until = self._aside.put(run.task.id, run.position)
        self._ledger.set_aside(run.task.id, run.ended, group_id=run.group_id, until=until, reason=reason)
        self._advance(set_aside=1, ended=-len(run.ended))
        self._budget.failed(f"{run.task.id}: {reason}")

    async def _collect_group(self, run: _Run) -> Group:
        """Raises BrokenTask after too many infrastructure faults at one rollout."""
        run.workspace = await self._prepare(run.task)
        async with task_group() as jobs:
            slots = range(self._settings.group_size)
            rollouts = [jobs.create_task(self._fill_slot(run, index)) for index in slots]
        unused = [key for key in self._history.open if key[0] == run.group_id]
        self._ledger.drop([self._history.open.pop(key).rollout_id for key in unused], "superseded")
        return Group(
            group_id=run.group_id, task=run.task, trajectories=tuple(job.result() for job in rollouts)
        )

    async def _prepare(self, task: Task) -> Path:
        delays = self._settings.retry_delays()
        for left in reversed(range(self._settings.attempts)):
            try:
                return await self._rollouts.prepare(task)
            except TaskError as error:
                raise BrokenTask(str(error)) from error
            except SandboxError as error:
                if not left:
                    raise BrokenTask(str(error)) from error
            await asyncio.sleep(next(delays))
        raise AssertionError("there is at least one attempt")

    async def _fill_slot(self, run: _Run, index: int) -> Trajectory:
        """Return a rollout without an infrastructure fault. Raises BrokenTask after `attempts` faults."""
        known = self._history.open.pop((run.group_id, index), None)
        if known is not None:
            trajectory = await self._reuse(run, known)
            if trajectory is not None:
                return trajectory
        trajectory = await retry_infrastructure_faults(partial(self._run_slot, run, index), self._settings)
        if is_infrastructure_fault(trajectory.outcome):
            raise BrokenTask(
                f"{self._settings.attempts} rollouts in a row ended in infrastructure faults, the last in "
                f"{trajectory.outcome} ({trajectory.error})"
            )
        return trajectory

    async def _reuse(self, run: _Run, entry: Entry) -> Trajectory | None:
        """Return a rollout of an earlier process; None: it cannot be used, and is dropped."""
        if entry.task_id != run.task.id:
            self._ledger.drop([entry.rollout_id], "superseded")
            return None
        try:
            trajectory = await self._rollouts.load(entry.directory or "")
        except StoreError:
            self._ledger.drop([entry.rollout_id], "unreadable")
            return None
        if self._is_lost(_newest_version(trajectory)):
            self._ledger.drop([entry.rollout_id], ROLLED_BACK)
            return None
        run.ended.append(entry.rollout_id)
        self._advance(reused=1, ended=1, solved=solved(trajectory.outcome, trajectory.verdict))
        return trajectory

    async def _run_slot(self, run: _Run, index: int) -> Trajectory:
        """Run one rollout, with a row in the ledger from its first moment to its end.

        An attempt after an interrupted one has its seed, so a run that was killed equals one that was not.
        """
        key, history = (run.group_id, index), self._history
        rollout_id = _attempt_name(run, index, history.attempts[key])
        history.attempts[key] += 1
        attempt = Attempt(
            rollout_id=rollout_id,
            group_id=run.group_id,
            task=run.task,
            workspace=run.workspace,
            position=run.position,
            index=index,
            seed=seed_of(self._seed, _attempt_name(run, index, history.faults[key])),
        )
        # begun groups first, the most urgent of them; then batch by batch, and the longest, which ends last
        batch = run.position // self._groups_per_step
        urgency = run.window.last_step(run.position) if run.window.begun(run.position) else math.inf
        priority = (urgency, batch, -history.expected_seconds(run.task.id), run.position, index)
        async with self._slots.hold(priority):
            run.window.begin(run.position)
            self._ledger.dispatch(
                rollout_id,
                group_id=run.group_id,
                index=index,
                position=run.position,
                task_id=run.task.id,
                sampled_version=self.version,
            )
            self._advance(running=1)
            started = asyncio.get_running_loop().time()
            try:
                trajectory, directory = await self._rollouts.run(attempt)
            except BaseException as error:  # re-raised; the rollout still ends in the ledger
                stopped = isinstance(error, asyncio.CancelledError)
                reason = "cancelled" if stopped else f"crashed: {type(error).__name__}"
                self._ledger.end(rollout_id, Outcome.CANCELLED, reason=reason)
                self._advance(running=-1)
                raise
            self._ledger.end(rollout_id, trajectory.outcome, reward=trajectory.reward, directory=directory)
        history.faults[key] += is_fault(trajectory.outcome)
        history.add_ended(run.task.id, asyncio.get_running_loop().time() - started)
        if is_infrastructure_fault(trajectory.outcome):
            self._advance(running=-1, faults=1)
        else:
            run.ended.append(rollout_id)
            self._advance(running=-1, ended=1, solved=solved(trajectory.outcome, trajectory.verdict))
        return trajectory

    def forget(self, group: Group, *, planned: int = 0) -> None:
        """Take a group, and `planned` rollouts, out of the counts of the progress; the next report tells."""
        resolved = sum(solved(t.outcome, t.verdict) for t in group.trajectories)
        self._count(planned=-planned, ended=-len(group.trajectories), solved=-resolved)

    def _advance(self, **more: int) -> None:
        self._count(**more)
        self._report(self._progress)

    def _count(self, **more: int) -> None:
        now = self._progress
        self._progress = replace(now, **{name: getattr(now, name) + by for name, by in more.items()})


def _attempt_name(run: _Run, index: int, earlier: int) -> str:
    return f"{run.group_id}-{index}" + (f"-{earlier}" if earlier else "")


def _newest_version(trajectory: Trajectory) -> int:
    """Return the newest weight version that sampled a token; -1 without any."""
    return max((int(node.version.max()) for node in trajectory.tree.nodes if node.version.size), default=-1)


def _nonzero_turn_rewards(trajectory: Trajectory) -> dict[int, float]:
    return {index: reward for index, reward in trajectory.turn_rewards.items() if reward}


def seed_of(*parts: object) -> int:
    """Return a seed in [0, 2^63) that is a function of all parts."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1
