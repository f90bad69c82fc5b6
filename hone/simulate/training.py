"""A training under virtual time: the pipeline and the ledger are real; rollouts, trainer and engine are not.

collect -> train (seconds) -> publish (seconds) -> commit, and now and then a checkpoint, as hone.train.loop
"""

from __future__ import annotations

import asyncio
import json
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass
from pathlib import Path

from hone.rollout.groups import Group, GroupCollector
from hone.rollout.ledger import TRAINED, Ledger, connect
from hone.rollout.order import TaskOrder
from hone.rollout.pipeline import Pipeline
from hone.rollout.settings import RolloutSettings
from hone.rollout.store import Store
from hone.rollout.window import Window
from hone.simulate.errors import SimulationError
from hone.simulate.fleet import SimulatedFleet
from hone.simulate.result import Result, bottleneck
from hone.simulate.rollouts import SimulatedRollouts
from hone.simulate.virtual_time import VirtualTimeLoop
from hone.simulate.workload import Workload
from hone.types import Checks, Environment, Task
from hone.utils.busy import BusyMeter
from hone.utils.concurrency import cancel_all
from hone.utils.files import replace_file

EPOCH = 1_700_000_000.0  # Unix time at which a simulation begins


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """A run to simulate."""

    rollout: RolloutSettings
    groups_per_step: int
    servers: int
    replies: int  # that each server samples at a time
    steps: int  # of the whole run
    seed: int = 0
    first: int = 0  # step from which on throughput is measured; those before it fill the window
    last: int | None = None  # step before which the simulation stops; default: the end of the run
    replacements: int = 0  # see `RolloutSettings.replace_constant_groups`
    death_every_s: float | None = None
    restart_s: float = 120.0
    checkpoint_every: int | None = None  # steps; with a run directory only
    checkpoint_s: float = 5.0  # to write one


class _Checkpoints:
    """Written in the background, as by `hone.train.checkpoint_writer`; its step is committed after it."""

    def __init__(self, run_dir: Path, simulation: Simulation, ledger: Ledger) -> None:
        self._path = run_dir / "checkpoint.json"
        self._simulation = simulation
        self._ledger = ledger
        self._writing: asyncio.Task[None] | None = None

    def resume(self) -> int:
        """Reconcile the ledger with the last checkpoint; return the next step."""
        done = -1
        if self._path.exists():
            state = json.loads(self._path.read_text())
            done = state["step"]
            if _committed(self._ledger) < done:
                self._ledger.commit_step(done, dict.fromkeys(state["rollouts"], TRAINED))
        if _committed(self._ledger) > done:
            self._ledger.rollback(done)
        return done + 1

    async def finish_step(self, step: int, rollouts: list[str]) -> None:
        await self.wait()
        every = self._simulation.checkpoint_every or 1
        if (step + 1) % every and step + 1 < self._simulation.steps:
            self._ledger.commit_step(step, dict.fromkeys(rollouts, TRAINED))
        else:
            self._writing = asyncio.create_task(self._write(step, rollouts))

    async def wait(self) -> None:
        if self._writing is not None:
            await self._writing

    async def _write(self, step: int, rollouts: list[str]) -> None:
        await asyncio.sleep(self._simulation.checkpoint_s)
        with replace_file(self._path) as partial:
            partial.write_text(json.dumps({"step": step, "rollouts": rollouts}))
        await asyncio.sleep(self._simulation.checkpoint_s / 10)
        self._ledger.commit_step(step, dict.fromkeys(rollouts, TRAINED))


async def simulate(
    simulation: Simulation,
    workload: Workload,
    *,
    run_dir: Path | None = None,
    on_step: Callable[[int, Sequence[Group]], None] = lambda step, groups: None,
) -> Result:
    """Simulate a run and return what it did; on a `VirtualTimeLoop` only.

    Args:
        run_dir: with the ledger, the trajectories and checkpoints of the run, with which another call goes
            on; default: the ledger is in memory, and nothing is written.
        on_step: is told of each trained step and its groups.

    Raises RolloutError if too many tasks are set aside.
    """
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualTimeLoop), "a simulation needs virtual time"
    began = time.process_time()
    async with AsyncExitStack() as stack:
        clock = _clock(loop, run_dir)
        ledger = stack.enter_context(
            Ledger(connect(Path(":memory:")), None, clock)
            if run_dir is None
            else Ledger.open(run_dir, clock=clock)
        )
        fleet = SimulatedFleet(simulation.servers, simulation.replies, workload.reply_slowdown)
        if simulation.death_every_s is not None:
            deaths = asyncio.create_task(fleet.kill_servers(simulation.death_every_s, simulation.restart_s))
            stack.push_async_callback(cancel_all, [deaths])
        training = _Training(simulation, workload, ledger, fleet, run_dir)
        measured = await training.run(on_step)
        return training.result(measured, cpu_s=time.process_time() - began)


def _clock(loop: VirtualTimeLoop, run_dir: Path | None) -> Callable[[], float]:
    """Return the Unix time of the simulation, which goes on where an earlier process of the run stopped."""
    start = EPOCH
    if run_dir is not None and (run_dir / "ledger.sqlite").exists():
        with Ledger.read(run_dir) as ledger:
            times = [(entry.dispatched_at, entry.ended_at or 0.0) for entry in ledger.entries()]
        start = max((max(pair) for pair in times), default=EPOCH)
    return lambda: start + loop.time()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measured:
    seconds: float
    waits: list[float]  # of the trainer, for each step
    busy: Mapping[str, float]
    sampled: float  # share of the places in the servers' batches
    leased: float  # share of the sandboxes
    updates_s: float  # of weights


class _Training:
    def __init__(
        self,
        simulation: Simulation,
        workload: Workload,
        ledger: Ledger,
        fleet: SimulatedFleet,
        run_dir: Path | None,
    ) -> None:
        self._simulation = simulation
        self._workload = workload
        self._ledger = ledger
        self._fleet = fleet
        self._version = 0
        self._checkpoints = None if run_dir is None else _Checkpoints(run_dir, simulation, ledger)
        store = None if run_dir is None else Store(run_dir / "rollouts")
        settings, size = simulation.rollout, simulation.groups_per_step
        self._rollouts = SimulatedRollouts(workload, fleet, settings, lambda: self._version, store)
        order = TaskOrder(
            [simulated_task(task_id) for task_id in workload.task_ids],
            seed=simulation.seed,
            groups_per_step=size,
            replacements=simulation.replacements,
        )
        groups = GroupCollector(
            self._rollouts, ledger, order, settings, seed=simulation.seed, groups_per_step=size
        )
        window = Window(groups_per_step=size, max_staleness=settings.max_staleness, steps=simulation.steps)
        self._pipeline = Pipeline(groups, window, group_size=settings.group_size)

    async def run(self, on_step: Callable[[int, Sequence[Group]], None]) -> _Measured:
        clock, simulation = asyncio.get_running_loop().time, self._simulation
        trainer, updates_s, waits = BusyMeter(1, clock), 0.0, list[float]()
        start = self._checkpoints.resume() if self._checkpoints else 0
        began = clock()
        await self._publish(start)
        async with self._pipeline.running(start):
            for step in range(start, simulation.steps if simulation.last is None else simulation.last):
                if step == simulation.first:
                    began, updates_s, waits = clock(), 0.0, []
                    self._shares(trainer)  # from here on
                waited = clock()
                groups = await self._pipeline.collect(step)
                waits.append(clock() - waited)
                self._require_fresh(groups, step)
                with trainer.use():
                    await asyncio.sleep(self._workload.train_s(step))
                updated = clock()
                await self._publish(step + 1)
                updates_s += clock() - updated
                rollouts = [t.rollout_id for group in groups for t in group.trajectories]
                if self._checkpoints:
                    await self._checkpoints.finish_step(step, rollouts)
                else:
                    self._ledger.commit_step(step, dict.fromkeys(rollouts, TRAINED))
                on_step(step, groups)
            seconds, shares = clock() - began, self._shares(trainer)
            if self._checkpoints:
                await self._checkpoints.wait()
        return _Measured(
            seconds=seconds,
            waits=waits,
            busy={name: shares[name] for name in ("engine", "sandbox", "trainer")},
            sampled=shares["sampled"],
            leased=shares["leased"],
            updates_s=updates_s,
        )

    def result(self, measured: _Measured, *, cpu_s: float) -> Result:
        simulation, rollouts = self._simulation, self._rollouts
        trained = [
            entry
            for entry in self._ledger.entries()
            if entry.step is not None and entry.step >= simulation.first
        ]
        asides = self._ledger.tasks_set_aside()
        steps = max(1, len(measured.waits))
        hours = measured.seconds / 3600
        wait_s = sum(measured.waits) / steps
        limit, sentence = bottleneck(
            trainer=measured.busy["trainer"],
            replies=measured.sampled,
            leased=measured.leased,
            update=measured.updates_s / measured.seconds if measured.seconds else 0.0,
            wait_s=wait_s,
            max_staleness=simulation.rollout.max_staleness,
        )
        staleness = Counter(entry.staleness for entry in trained if entry.staleness is not None)
        return Result(
            max_staleness=simulation.rollout.max_staleness,
            servers=simulation.servers,
            sandboxes=simulation.rollout.concurrent_episodes,
            steps=len(measured.waits),
            groups_per_hour=steps * simulation.groups_per_step / hours if hours else 0.0,
            rollouts_per_hour=len(trained) / hours if hours else 0.0,
            step_s=measured.seconds / steps,
            wait_s=wait_s,
            update_s=measured.updates_s / steps,
            busy=measured.busy,
            replies_share=measured.sampled,
            leased_share=measured.leased,
            sandboxes_used=rollouts.most_leased,
            staleness={age: staleness[age] for age in sorted(staleness)},
            faults=rollouts.faults,
            deaths=self._fleet.deaths,
            set_aside={aside.task_id: aside.reason for aside in asides},
            set_asides=len(asides),
            limit=limit,
            bottleneck=sentence,
            virtual_s=asyncio.get_running_loop().time(),
            cpu_s=cpu_s,
        )

    async def _publish(self, version: int) -> None:
        """Update the weights; version 0, and that of a resumed run, are loaded before rollouts begin."""
        if version:
            await self._fleet.publish(self._workload.publish_s, partial=self._simulation.rollout.partial)
        self._version = version

    def _shares(self, trainer: BusyMeter) -> dict[str, float]:
        """Return the shares since the last call, each in [0, 1]."""
        return {
            "engine": self._fleet.busy_share(),
            "sandbox": self._rollouts.working.share(),
            "trainer": trainer.share(),
            "sampled": self._fleet.sampled_share(),
            "leased": self._rollouts.leased.share(),
        }

    def _require_fresh(self, groups: list[Group], step: int) -> None:
        """Raise SimulationError for a token that `hone.train.loop` refuses as stale."""
        oldest = step - self._simulation.rollout.max_staleness
        for group in groups:
            for trajectory in group.trajectories:
                versions = trajectory.tree.nodes[0].version
                if versions.min() < oldest or versions.max() > step:
                    raise SimulationError(
                        f"rollout {trajectory.rollout_id} holds tokens of weight versions "
                        f"{versions.min()} to {versions.max()} at step {step}, and rollout.max_staleness is "
                        f"{self._simulation.rollout.max_staleness}"
                    )


def _committed(ledger: Ledger) -> int:
    return -1 if ledger.last_step is None else ledger.last_step


def simulated_task(task_id: str) -> Task:
    return Task(
        id=task_id,
        problem="",
        environment=Environment(image="host"),
        checks=Checks(fail_to_pass=(), pass_to_pass=(), test_files={}, gold_patch=""),
        source="simulated",
    )
