"""Simulated runs with a real ledger and real files, killed at any moment."""

from __future__ import annotations

import asyncio
import random
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from hone.rollout.ledger import Balance, Disposition, Entry, Ledger
from hone.simulate.training import Simulation, simulate
from hone.simulate.virtual_time import run
from hone.simulate.workload import GivenWorkload
from tests.rollout.test_ledger import MEMORY
from tests.simulate.running import simulation_of, workload_of


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as directory:
        yield Path(directory)


MEAN_LIFE_S = 400.0  # of virtual time, between two kills


def run_until_killed(
    simulation: Simulation, workload: GivenWorkload, run_dir: Path, after_s: float, left: Path
) -> float | None:
    """Run until `after_s`, and copy the files as a killed process leaves them into `left`.

    Returns the virtual seconds that the run took if it ended before, else None.
    """

    async def main() -> float | None:
        loop, killed = asyncio.get_running_loop(), False
        training = asyncio.create_task(simulate(simulation, workload, run_dir=run_dir))

        def kill() -> None:
            nonlocal killed
            killed = True
            left.mkdir()
            for file in run_dir.iterdir():
                if file.name == "rollouts":
                    file.rename(left / file.name)  # what ends from here on, ends in a run that is no more
                else:
                    shutil.copy(file, left / file.name)
            training.cancel()

        loop.call_later(after_s, kill)
        with suppress(asyncio.CancelledError):
            result = await training
            return None if killed else result.virtual_s
        return None

    return run(main())


def kill_again_and_again(
    simulation: Simulation, workload: GivenWorkload, root: Path, kills: int, seed: int
) -> tuple[int, list[Entry], Balance]:
    """Run to the end with up to `kills` kills; return how many there were, the rows and the balance."""
    rng, run_dir = random.Random(seed), root / "0"
    run_dir.mkdir()
    for kill in range(kills):
        left = root / str(kill + 1)
        ended = run_until_killed(simulation, workload, run_dir, rng.expovariate(1 / MEAN_LIFE_S), left)
        if ended is not None:
            kills = kill
            break
        finished = finished_rollouts(left)
        shutil.rmtree(run_dir)
        run_dir = left
        assert finished_rollouts(run_dir) == finished
    else:
        run(simulate(simulation, workload, run_dir=run_dir))
    with Ledger.read(run_dir) as ledger:
        return kills, ledger.entries(), ledger.balance()


def finished_rollouts(run_dir: Path) -> set[str]:
    with Ledger.read(run_dir) as ledger:
        return {e.rollout_id for e in ledger.entries() if e.outcome is not None}


def require_sound(simulation: Simulation, entries: list[Entry], balance: Balance) -> None:
    size, bound = simulation.groups_per_step, simulation.rollout.max_staleness
    assert balance.steps == simulation.steps
    assert balance.in_flight == 0, "no rollout is lost"
    assert balance.dispatched == balance.trained + sum(balance.dropped.values())
    assert set(balance.dropped) <= {"interrupted", "rolled_back", "stale", "cancelled", "superseded"}
    trained = [entry for entry in entries if entry.disposition is Disposition.TRAINED]
    groups = {(entry.step, entry.position, entry.group_id) for entry in trained}
    assert Counter(step for step, _, _ in groups) == dict.fromkeys(range(simulation.steps), size)
    positions = sorted(position for _, position, _ in groups)
    assert positions == list(range(size * simulation.steps)), "each group is trained once"
    assert set(Counter(entry.group_id for entry in trained).values()) == {simulation.rollout.group_size}
    assert all(0 <= entry.staleness <= bound for entry in trained if entry.staleness is not None)


def kill_runs(root: Path, kills: int, *, max_staleness: int, seed: int, **more: int) -> int:
    """Kill runs until there were `kills` in all, and look at each; return the interrupted rollouts."""
    killed = runs = interrupted = 0
    while killed < kills:
        directory = root / str(runs)
        directory.mkdir()
        simulation = simulation_of(max_staleness=max_staleness, checkpoint_every=1 + runs % 4, **more)
        ended, entries, balance = kill_again_and_again(
            simulation, workload_of(), directory, kills - killed, seed=seed + runs
        )
        require_sound(simulation, entries, balance)
        interrupted += balance.dropped.get("interrupted", 0)
        killed, runs = killed + ended, runs + 1
        shutil.rmtree(directory)
    return interrupted


def test_killed_runs_train_every_group_once_within_the_bound(root: Path):
    assert kill_runs(root, 3, max_staleness=2, seed=2, steps=6) > 0


@pytest.mark.full
@pytest.mark.parametrize("max_staleness", [0, 1, 2, 4, 8])
def test_two_hundred_kills_lose_and_double_nothing(root: Path, max_staleness: int):
    assert kill_runs(root, 40, max_staleness=max_staleness, seed=100 * max_staleness, steps=12) > 0
