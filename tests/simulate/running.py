"""Small simulated runs."""

from __future__ import annotations

from typing import Any

from hone.rollout.settings import RolloutSettings
from hone.simulate.result import Result
from hone.simulate.settings import SimulateSettings
from hone.simulate.training import Simulation, simulate
from hone.simulate.virtual_time import run
from hone.simulate.workload import GivenWorkload, Workload

QUICK = {"turns": 3, "turns_ratio": 8, "tasks": 24, "publish_s": 5, "grade_s": 5}
TRAIN_S = 30.0


def workload_of(**settings: Any) -> GivenWorkload:
    return GivenWorkload(SimulateSettings(**{**QUICK, **settings}), seed=1, train_s=TRAIN_S)


def simulation_of(
    *, max_staleness: int = 2, rollout: dict[str, Any] | None = None, **more: Any
) -> Simulation:
    settings = {"group_size": 3, "concurrent_episodes": 12, "time_limit_s": 1e5, "reply_timeout_s": 1e4}
    given: dict[str, Any] = {"groups_per_step": 4, "servers": 2, "replies": 4, "steps": 12, "seed": 1}
    return Simulation(
        rollout=RolloutSettings(**{**settings, "max_staleness": max_staleness, **(rollout or {})}),
        **{**given, **more},
    )


def run_of(simulation: Simulation, workload: Workload | None = None) -> Result:
    return run(simulate(simulation, workload or workload_of()))
