from __future__ import annotations

from pathlib import Path

import pytest

from hone.rollout.attempts import Attempt
from hone.simulate.training import simulated_task
from hone.simulate.workload import Draw, GivenWorkload, MergedTurns, Workload
from tests.simulate.running import workload_of


def draws_of(workload: Workload, number: int) -> list[Draw]:
    return [
        draw_of(workload, seed, workload.task_ids[seed % len(workload.task_ids)]) for seed in range(number)
    ]


def draw_of(workload: Workload, seed: int, task_id: str) -> Draw:
    return workload.draw(
        Attempt(
            rollout_id="r",
            group_id="g",
            task=simulated_task(task_id),
            workspace=Path(),
            position=0,
            index=0,
            seed=seed,
        )
    )


def test_rollouts_are_as_long_as_the_settings_say():
    given = workload_of(turns=20, turns_ratio=6, reply_ratio=1, command_ratio=1, tasks=500)
    turns = sorted(len(draw.turns) for draw in draws_of(given, 4000))
    assert turns[2000] == pytest.approx(20, rel=0.15)
    assert turns[3960] == pytest.approx(120, rel=0.35)
    assert sum(turns) / 4000 == pytest.approx(given.mean_turns, rel=0.15)


def test_task_share_says_how_far_rollouts_of_a_task_are_alike():
    def lengths(share: float) -> set[int]:
        given = workload_of(turns=50, turns_ratio=20, task_share=share)
        return {len(draw_of(given, seed, "task-3").turns) for seed in range(40)}

    assert len(lengths(1.0)) == 1
    assert len(lengths(0.0)) > 10


def test_draw_depends_on_the_seed_of_the_attempt_alone():
    one, other = workload_of(fault_share=0.5), workload_of(fault_share=0.5)
    assert draws_of(one, 50) == draws_of(other, 50)[::1]
    assert draws_of(one, 50)[::-1] == [draw_of(other, n, other.task_ids[n % 24]) for n in reversed(range(50))]


def test_broken_tasks_and_faults_have_their_share():
    given = workload_of(broken_tasks=0.2, tasks=500, fault_share=0.1)
    assert len(given.broken_tasks) == pytest.approx(100, rel=0.3)
    for task_id in sorted(given.broken_tasks)[:5]:
        assert draw_of(given, 1, task_id).fault_after == 0
    whole = sorted(set(given.task_ids) - given.broken_tasks)[0]
    faults = sum(draw_of(given, seed, whole).fault_after is not None for seed in range(2000))
    assert faults == pytest.approx(200, rel=0.3)


def test_merged_turns_take_the_same_time():
    given: GivenWorkload = workload_of(turns=7, fault_share=0.5)
    merged = MergedTurns(given, 3)
    for whole, few in zip(draws_of(given, 30), draws_of(merged, 30), strict=True):
        assert few.seconds == pytest.approx(whole.seconds)
        assert len(few.turns) == -(-len(whole.turns) // 3)
        assert (few.fault_after is None) == (whole.fault_after is None)
        assert few.fault_after is None or few.fault_after <= len(few.turns)
    assert merged.mean_turns == pytest.approx(given.mean_turns / 3)
