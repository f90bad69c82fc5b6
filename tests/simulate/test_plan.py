"""`hone plan RECIPE --simulate`"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from hone.cli import main
from hone.config import resolve
from hone.config.simulation import SimulatedPlan, advice, given_workload, planned_simulations
from hone.simulate.training import Simulation
from hone.utils.devices import Devices, equal_devices
from tests.simulate.running import run_of, simulation_of
from tests.simulate.test_measured import trajectory, write_run

RECIPE = Path(__file__).parents[2] / "recipes" / "swe-8b-1node.toml"
Hone = Callable[..., tuple[int, str, str]]


@pytest.fixture
def hone(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Hone:
    def run(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr("sys.argv", ["hone", "plan", str(RECIPE), *map(str, arguments)])
        code = main()
        return code, *capfd.readouterr()

    return run


def simulations(devices: Devices, *sets: str, fill: bool = False) -> list[tuple[Simulation, int]]:
    settings = resolve(RECIPE, ["simulate.train_s=60", *sets], command="train")
    workload = given_workload(settings, devices)
    return [(job.simulation, job.gpus) for job in planned_simulations(settings, devices, workload, fill=fill)]


def test_plan_varies_staleness_then_servers_then_sandboxes():
    planned = simulations(equal_devices(8, 80), "rollout.max_staleness=1")
    rows = [
        (each.rollout.max_staleness, each.servers, each.rollout.concurrent_episodes, gpus)
        for each, gpus in planned
    ]
    assert rows[:5] == [(bound, 2, 16, 8) for bound in (0, 1, 2, 4, 8)]
    assert rows[5:] == [(1, 1, 16, 6), (1, 4, 16, 12), (1, 2, 8, 8), (1, 2, 32, 8)]
    assert {each.replies for each, _ in planned} == {32}
    assert all(each.last is not None and each.steps > each.last for each, _ in planned)


def test_plan_for_other_machines_fills_the_gpus_that_the_trainer_leaves():
    large = equal_devices(8, 80, nodes=512)
    (first, gpus), *_ = simulations(large, "train.ranks=1024", fill=True)
    assert (first.servers, gpus) == ((4096 - 1024) // 2, 4096)


def test_engine_that_shares_the_gpus_of_the_trainer_is_planned_on_policy():
    planned = simulations(equal_devices(8, 80), "placement.colocate=true", "train.ranks=8")
    assert {each.rollout.max_staleness for each, _ in planned} == {0}


def test_advice_is_the_smallest_bound_that_is_about_as_fast_as_any():
    base = run_of(simulation_of(steps=1))
    speeds = {0: 100.0, 1: 170.0, 2: 240.0, 4: 250.0, 8: 251.0}
    rows = [
        SimulatedPlan(
            gpus=8,
            turns_merged=1,
            result=dataclasses.replace(base, max_staleness=bound, rollouts_per_hour=speed),
        )
        for bound, speed in speeds.items()
    ]
    assert advice(rows).startswith(
        "rollout.max_staleness = 2 gives 2.40 times the rollouts of 0, and no larger"
    )
    assert advice(rows[:1]).startswith("rollout.max_staleness = 0 suffices")


@pytest.mark.slow
def test_simulated_plan_is_printed_as_json(hone: Hone, tmp_path: Path):
    write_run(tmp_path, trajectory("a", "one"), trajectory("b", "two"))
    sets = ("--set", "simulate.steps=1", "--set", "groups_per_step=1")
    code, out, err = hone("--simulate", "--from-run", tmp_path, "--gpus", 8, "--json", *sets)
    assert code == 0, err
    printed = json.loads(out)
    assert [row["max_staleness"] for row in printed["rows"][:5]] == [0, 1, 2, 4, 8]
    for row in printed["rows"]:
        assert row["rollouts_per_hour"] > 0
        assert set(row["busy"]) == {"engine", "sandbox", "trainer"}
    assert printed["advice"].startswith("rollout.max_staleness = ")
    assert "simulating" in err


def test_options_without_effect_are_refused(hone: Hone, tmp_path: Path):
    code, _, err = hone("--from-run", tmp_path)
    assert code == 2
    assert "--from-run has no effect without --simulate" in err
    code, _, err = hone("--simulate", "--command", "eval")
    assert code == 2
    assert "--simulate has no effect with --command eval" in err
    parked = ["--set", "rollout.park_after_s=60", "--set", "sandbox.provider=namespaces"]
    code, _, err = hone("--simulate", *parked)
    assert code == 2
    assert "rollout.park_after_s is not simulated" in err
    code, _, err = hone("--simulate", "--from-run", tmp_path, "--set", "simulate.reply_s=3")
    assert code == 2
    assert "simulate.reply_s has no effect with --from-run" in err
