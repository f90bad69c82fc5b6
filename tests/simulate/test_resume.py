from __future__ import annotations

from pathlib import Path

import pytest

from hone.rollout.groups import GroupCollector
from hone.rollout.ledger import Ledger
from hone.rollout.order import TaskOrder
from hone.rollout.settings import RolloutSettings
from hone.rollout.store import Store
from hone.rollout.window import Window
from hone.simulate.fleet import SimulatedFleet
from hone.simulate.rollouts import SimulatedRollouts
from hone.simulate.training import simulated_task
from hone.simulate.virtual_time import run
from tests.simulate.running import workload_of


def window_of(positions: int) -> Window:
    window = Window(groups_per_step=1, max_staleness=2, steps=9)
    for position in range(positions):
        window.admit(position)
    return window


@pytest.mark.parametrize("max_staleness", [0, 2])
def test_resumed_run_reuses_no_token_of_weights_that_it_lost(tmp_path: Path, max_staleness: int):
    """A process that had reached version 3 is killed; its last checkpoint is that of version 2."""
    settings = RolloutSettings(group_size=1, max_staleness=max_staleness)
    workload = workload_of(turns=1, turns_ratio=1, tasks=3)
    version = 2

    def collector(ledger: Ledger) -> GroupCollector:
        fleet = SimulatedFleet(1, replies=4)
        rollouts = SimulatedRollouts(workload, fleet, settings, lambda: version, Store(tmp_path / "rollouts"))
        order = TaskOrder([simulated_task(i) for i in workload.task_ids], seed=0, groups_per_step=1)
        return GroupCollector(rollouts, ledger, order, settings, seed=0, groups_per_step=1)

    async def first(ledger: Ledger) -> None:
        nonlocal version
        groups = collector(ledger)
        await groups.recover(2)
        window = window_of(3)
        await groups.collect(0, window)  # version 2 alone
        version = 3
        await groups.collect(1, window)  # dispatched at version 2, sampled by version 3
        groups.version = 3
        await groups.collect(2, window)

    async def second(ledger: Ledger) -> list[str]:
        nonlocal version
        version = 2
        groups = collector(ledger)
        await groups.recover(2)
        window = window_of(3)
        found = [await groups.collect(position, window) for position in range(3)]
        return [group.trajectories[0].rollout_id for group in found]

    with Ledger.open(tmp_path) as ledger:
        run(first(ledger))
        found = run(second(ledger))
        dropped = ledger.balance().dropped
    if max_staleness:
        assert (found, dropped) == (["s0g0-0", "s1g0-0-1", "s2g0-0-1"], {"rolled_back": 2})
    else:  # the repeated step trains the same groups, and so makes the same weights again
        assert (found, dropped) == (["s0g0-0", "s1g0-0", "s2g0-0"], {})
