"""How fast a run would be with other numbers of engine servers and sandboxes and another bound on staleness.

Every row is a simulation of the run with the pipeline of `hone.rollout` (see `hone.simulate`), on the same
draws of rollouts.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from multiprocessing import get_context

from hone.agents.settings import PolicyAgentSettings
from hone.config.device_plan import plan_devices
from hone.config.run import RunSettings
from hone.policy.settings import LocalEngineSettings, ServerEngineSettings
from hone.simulate.result import Result
from hone.simulate.training import Simulation, simulate
from hone.simulate.virtual_time import run
from hone.simulate.workload import GivenWorkload, MergedTurns, Workload
from hone.utils.devices import Devices

STALENESS = (0, 1, 2, 4, 8)
AROUND = 2  # at which servers and sandboxes vary, for a recipe without staleness
ENOUGH = 0.95  # of the largest throughput
TRAIN_S = 60.0  # of a step, without an estimate
REPLIES = 32  # at a time, of a server that the run does not start
_ROLLOUTS, _STEPS = 1000, 6  # that are measured at least
_EVENTS = 300_000  # turns of the measured batches that are simulated one by one; more are merged


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedPlan:
    """One row of the table."""

    gpus: int  # of trainer and engine; 0: none
    result: Result
    turns_merged: int  # turns that count as one, to simulate a large run in minutes


def simulate_plan(
    settings: RunSettings,
    devices: Devices,
    *,
    measured: Workload | None = None,
    fill: bool = False,
    on_row: Callable[[int, int], None] = lambda done, of: None,
) -> list[SimulatedPlan]:
    """Return a row for each bound on staleness, then for half and twice the servers and the sandboxes at one.

    Args:
        measured: durations of a run; default: those of `settings.simulate`.
        fill: whether the engine has every GPU of `devices` that the trainer leaves.
        on_row: is told how many rows are done, of how many.
    """
    workload = given_workload(settings, devices) if measured is None else measured
    jobs = list(planned_simulations(settings, devices, workload, fill=fill))
    on_row(0, len(jobs))
    rows: dict[int, SimulatedPlan] = {}
    workers = min(len(jobs), os.cpu_count() or 1)
    with get_context("spawn").Pool(workers) as pool:
        for number, row in pool.imap_unordered(_simulate, enumerate(jobs)):
            rows[number] = row
            on_row(len(rows), len(jobs))
    return [rows[number] for number in range(len(jobs))]


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedSimulation:
    """What a row of the table is made of."""

    simulation: Simulation
    workload: Workload
    gpus: int
    turns_merged: int


def _simulate(numbered: tuple[int, PlannedSimulation]) -> tuple[int, SimulatedPlan]:
    number, job = numbered
    result = run(simulate(job.simulation, job.workload))
    return number, SimulatedPlan(gpus=job.gpus, result=result, turns_merged=job.turns_merged)


def planned_simulations(
    settings: RunSettings, devices: Devices, workload: Workload, *, fill: bool
) -> Iterator[PlannedSimulation]:
    """Yield what `simulate_plan` simulates."""
    servers, per_server, trainer_gpus = _engine(settings, devices, fill)
    sandboxes, staleness = settings.rollout.concurrent_episodes, settings.rollout.max_staleness
    bounds = (0,) if settings.placement.colocate else sorted({*STALENESS, staleness})
    around = 0 if settings.placement.colocate else staleness or AROUND
    cases = [(bound, servers, sandboxes) for bound in bounds]
    if isinstance(settings.engine, ServerEngineSettings):
        cases += [(around, number, sandboxes) for number in (servers // 2, 2 * servers) if number]
    cases += [(around, servers, number) for number in (sandboxes // 2, 2 * sandboxes) if number]
    for bound, number, leases in dict.fromkeys(cases):
        simulation = plan_simulation(settings, max_staleness=bound, servers=number, sandboxes=leases)
        merged = _turns_merged(simulation, workload)
        timeout_s = merged * settings.rollout.reply_timeout_s  # of so many replies in one
        limits = simulation.rollout.model_copy(update={"reply_timeout_s": timeout_s})
        gpus = trainer_gpus + (0 if settings.placement.colocate else number * per_server)
        yield PlannedSimulation(
            simulation=replace(simulation, rollout=limits),
            workload=MergedTurns(workload, merged) if merged > 1 else workload,
            gpus=max(gpus, number * per_server),
            turns_merged=merged,
        )


def given_workload(settings: RunSettings, devices: Devices) -> GivenWorkload:
    """Return the durations of `settings.simulate`, with the estimated ones of a training step."""
    train_s = settings.simulate.train_s
    if train_s is None:
        train_s = plan_devices(settings, "train", devices).train_seconds or TRAIN_S
    agent = settings.agent
    limit = agent.turn_limit if isinstance(agent, PolicyAgentSettings) else None
    return GivenWorkload(settings.simulate, seed=settings.seed, train_s=train_s, turn_limit=limit)


def plan_simulation(settings: RunSettings, *, max_staleness: int, servers: int, sandboxes: int) -> Simulation:
    """Return the simulation of a run with other numbers: the window fills, then some are measured."""
    first = 2 * (max_staleness + 1)
    batch = settings.groups_per_step * settings.rollout.group_size
    last = first + (settings.simulate.steps or max(first, _STEPS, -(-_ROLLOUTS // batch)))
    changed = {"max_staleness": max_staleness, "concurrent_episodes": sandboxes}
    return Simulation(
        rollout=settings.rollout.model_copy(update=changed),
        groups_per_step=settings.groups_per_step,
        servers=servers,
        replies=_replies(settings),
        steps=last + max_staleness + 1,  # so that the window stays full until the end
        seed=settings.seed,
        first=first,
        last=last,
        replacements=settings.rollout.replace_constant_groups,
        death_every_s=settings.simulate.death_every_s,
        restart_s=settings.simulate.restart_s,
    )


def _replies(settings: RunSettings) -> int:
    """Return the replies that a server samples at a time."""
    engine = settings.engine
    if settings.simulate.replies is not None:
        return settings.simulate.replies
    managed = isinstance(engine, LocalEngineSettings) or (
        isinstance(engine, ServerEngineSettings) and engine.managed
    )
    return engine.max_batch if managed else REPLIES  # pyright: ignore[reportAttributeAccessIssue]


def _engine(settings: RunSettings, devices: Devices, fill: bool) -> tuple[int, int, int]:
    """Return (servers, GPUs of each, GPUs of the trainer)."""
    train, engine, placement = settings.train, settings.engine, settings.placement
    has_gpus = bool(devices.gpus) and placement.trainer not in ("cpu", "mps")
    trainer = (train.ranks if train.learner == "ranks" else 1) if has_gpus else 0
    if not isinstance(engine, ServerEngineSettings):
        return max(1, len(engine.addresses)), 0, trainer
    size = engine.tensor_parallel
    if isinstance(placement.engine, tuple) and placement.engine:
        size = len(placement.engine[0])
    if not devices.gpus:
        return len(engine.urls) or engine.servers, 0, trainer
    if fill:
        left = len(devices.gpus) - (0 if placement.colocate else trainer)
        return max(1, left // size), size, trainer
    return len(engine.urls) or engine.servers, size, trainer


def _turns_merged(simulation: Simulation, workload: Workload) -> int:
    rollouts = simulation.steps * simulation.groups_per_step * simulation.rollout.group_size
    return max(1, round(rollouts * workload.mean_turns / _EVENTS))


def advice(rows: Sequence[SimulatedPlan]) -> str:
    """Return the smallest bound on staleness that is about as fast as any, and what then bounds the run."""
    first = rows[0].result
    bounds = [row.result for row in rows if row.result.sandboxes == first.sandboxes]
    bounds = [result for result in bounds if result.servers == first.servers]
    best = max(result.rollouts_per_hour for result in bounds)
    chosen = next(result for result in bounds if result.rollouts_per_hour >= ENOUGH * best)
    ratio = chosen.rollouts_per_hour / first.rollouts_per_hour if first.rollouts_per_hour else 1.0
    gain = f"gives {ratio:.2f} times the rollouts of 0, and " if chosen is not first else "suffices: "
    return (
        f"rollout.max_staleness = {chosen.max_staleness} {gain}no larger one is over "
        f"{100 * (1 / ENOUGH - 1):.0f} % faster; at most {chosen.sandboxes_used} of {chosen.sandboxes} "
        f"sandboxes were in use. What bounds it: {chosen.bottleneck}"
    )
