from __future__ import annotations

import dataclasses

import pytest

from hone.simulate.result import Result
from tests.simulate.running import TRAIN_S, run_of, simulation_of, workload_of


def without_cpu(result: Result) -> Result:
    return dataclasses.replace(result, cpu_s=0.0)


def test_same_seed_gives_the_same_result_also_with_faults():
    workload = workload_of(fault_share=0.1, broken_tasks=0.1)
    first, second = (run_of(simulation_of(death_every_s=60.0, restart_s=20), workload) for _ in range(2))
    assert first.faults > 0
    assert without_cpu(first) == without_cpu(second)
    other = run_of(simulation_of(death_every_s=60.0, restart_s=20, seed=2), workload)
    assert without_cpu(other) != without_cpu(first)


def test_synchronous_run_waits_for_every_rollout_and_asynchronous_ones_within_their_bound():
    results = {bound: run_of(simulation_of(max_staleness=bound)) for bound in (0, 1, 2)}
    for bound, result in results.items():
        assert max(result.staleness) <= bound
        assert sum(result.staleness.values()) == 12 * 4 * 3
    assert results[0].staleness == {0: 144}
    speeds = [result.rollouts_per_hour for result in results.values()]
    assert speeds == sorted(speeds)
    assert results[2].rollouts_per_hour > 1.3 * results[0].rollouts_per_hour


def test_result_adds_up():
    result = run_of(simulation_of(max_staleness=0))
    assert result.step_s == pytest.approx(result.wait_s + TRAIN_S + result.update_s)
    assert result.busy["trainer"] == pytest.approx(TRAIN_S / result.step_s)
    assert result.groups_per_hour == pytest.approx(3600 / result.step_s * 4)
    assert result.rollouts_per_hour == pytest.approx(3 * result.groups_per_hour)
    assert result.sandboxes_used == 12


def test_bottleneck_is_named():
    def limit(workload: dict[str, float], **more: object) -> str:
        return run_of(simulation_of(**more), workload_of(**workload)).limit  # type: ignore[arg-type]

    assert limit({"reply_s": 0.1, "command_s": 0.1, "grade_s": 1, "publish_s": 1}) == "trainer"
    assert limit({}, servers=1, replies=1, max_staleness=8) == "engine"
    sandboxes = {"concurrent_episodes": 2}
    assert limit({}, servers=8, replies=8, max_staleness=4, rollout=sandboxes) == "sandboxes"
    assert limit({"turns_ratio": 30}, max_staleness=0) == "stragglers"
    assert limit({"publish_s": 900}) == "updates"


def test_broken_tasks_are_set_aside_and_tried_again_while_servers_die():
    workload = workload_of(broken_tasks=0.1, tasks=40)
    assert workload.broken_tasks
    simulation = simulation_of(steps=80, death_every_s=60.0, restart_s=30.0, servers=4)
    result = run_of(simulation, workload)
    assert result.steps == 80
    assert result.deaths > 80
    assert set(result.set_aside) == workload.broken_tasks
    assert all("sandbox_error" in reason for reason in result.set_aside.values())
    assert result.set_asides > len(result.set_aside), "each is tried again later"
    assert max(result.staleness) <= 2
