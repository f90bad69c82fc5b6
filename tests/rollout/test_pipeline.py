from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from hone.outcomes import Outcome
from hone.rollout.attempts import Attempt
from hone.rollout.errors import RolloutError
from hone.rollout.groups import Group
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.order import TaskOrder
from hone.rollout.pipeline import Pipeline
from hone.rollout.settings import RolloutSettings
from hone.tasks.errors import TaskError
from hone.types import Checks, Environment, Task, TokenTree, Trajectory
from tests.rollout.collecting import pipeline_of

Act = Callable[[Attempt], Awaitable[float | None]]


def make_tasks(count: int) -> list[Task]:
    checks = Checks(fail_to_pass=("t",), pass_to_pass=(), test_files={}, gold_patch="")
    return [
        Task(id=f"t{i}", problem="", environment=Environment(image="host"), checks=checks, source="test")
        for i in range(count)
    ]


class Acted:
    """Rollouts whose reward is what `act` returns; None is an infrastructure fault."""

    def __init__(self, act: Act, unpreparable: Collection[str] = ()) -> None:
        self._act, self._unpreparable = act, unpreparable
        self.stored: dict[str, Trajectory] = {}
        self.begun: list[str] = []

    async def prepare(self, task: Task) -> Path:
        if task.id in self._unpreparable:
            raise TaskError("there is no such commit")
        return Path()

    async def run(self, attempt: Attempt) -> tuple[Trajectory, str]:
        self.begun.append(attempt.rollout_id)
        reward = await self._act(attempt)
        made = Trajectory(
            task_id=attempt.task.id,
            rollout_id=attempt.rollout_id,
            group_id=attempt.group_id,
            tree=TokenTree(),
            turns=(),
            messages=(),
            patch="",
            outcome=Outcome.SANDBOX_ERROR if reward is None else Outcome.UNRESOLVED,
            reward=reward,
            error="no such image" if reward is None else None,
            seed=attempt.seed,
        )
        self.stored[attempt.rollout_id] = made
        return made, attempt.rollout_id

    async def load(self, name: str) -> Trajectory:
        return self.stored[name]

    async def sweep(self, names: Collection[str]) -> None:
        self.stored = {name: made for name, made in self.stored.items() if name in names}


async def at_once(attempt: Attempt) -> float:
    return float(attempt.index)


@asynccontextmanager
async def running(
    root: Path,
    rollouts: Acted,
    *,
    step: int = 0,
    tasks: int = 6,
    groups_per_step: int = 2,
    steps: int = 4,
    **settings: object,
) -> AsyncGenerator[tuple[Pipeline, Ledger]]:
    chosen = RolloutSettings.model_validate({"group_size": 2, "retry_delay_s": 0.0, **settings})
    order = TaskOrder(
        make_tasks(tasks),
        seed=0,
        groups_per_step=groups_per_step,
        replacements=chosen.replace_constant_groups,
    )
    with Ledger.open(root) as ledger:
        pipeline = pipeline_of(rollouts, ledger, order, chosen, groups_per_step=groups_per_step, steps=steps)
        async with pipeline.running(step):
            yield pipeline, ledger


async def some_turns() -> None:
    """Let everything that waits for nothing but its turn go on."""
    for _ in range(50):
        await asyncio.sleep(0)


def commit(ledger: Ledger, step: int, groups: list[Group]) -> None:
    ledger.commit_step(step, {t.rollout_id: TRAINED for group in groups for t in group.trajectories})


def test_rollouts_go_on_while_the_trainer_works(tmp_path: Path):
    async def run() -> None:
        rollouts = Acted(at_once)
        async with running(tmp_path, rollouts, max_staleness=1) as (pipeline, ledger):
            batch = await pipeline.collect(0)
            assert [group.group_id for group in batch] == ["s0g0", "s0g1"]
            await some_turns()  # the trainer works
            assert {rollout_id[:2] for rollout_id in rollouts.begun} == {"s0", "s1"}
            commit(ledger, 0, batch)
            later = await pipeline.collect(1)
            assert [group.group_id for group in later] == ["s1g0", "s1g1"]
            commit(ledger, 1, later)
            assert {entry.staleness for entry in ledger.entries(1)} == {1}

    asyncio.run(run())


def test_one_slow_rollout_holds_back_nothing_but_its_last_step(tmp_path: Path):
    async def run() -> None:
        told = asyncio.Event()

        async def act(attempt: Attempt) -> float:
            if attempt.group_id == "s0g0":
                await told.wait()
            return float(attempt.index)

        async with running(tmp_path, Acted(act), max_staleness=2) as (pipeline, ledger):
            for step in range(2):
                commit(ledger, step, await asyncio.wait_for(pipeline.collect(step), 60))
            last = asyncio.create_task(pipeline.collect(2))
            await some_turns()
            assert not last.done(), "the group that version 0 began would be too old for step 3"
            told.set()
            groups = await last
            assert groups[0].group_id == "s0g0"
            commit(ledger, 2, groups)
            commit(ledger, 3, await pipeline.collect(3))
            assert max(entry.staleness or 0 for entry in ledger.entries()) == 2
            balance = ledger.balance()
            assert (balance.trained, balance.in_flight, dict(balance.dropped)) == (16, 0, {})

    asyncio.run(run())


def test_stopped_run_uses_what_was_finished_and_skips_no_position(tmp_path: Path):
    async def run() -> None:
        hold = asyncio.Event()

        async def act(attempt: Attempt) -> float:
            if attempt.group_id in ("s0g0", "s1g1"):
                await hold.wait()
            return float(attempt.index)

        rollouts = Acted(act)
        async with running(tmp_path, rollouts, max_staleness=2) as (pipeline, ledger):
            commit(ledger, 0, await pipeline.collect(0))
            await some_turns()
        hold.set()
        before = len(rollouts.begun)
        finished = set(rollouts.stored)
        async with running(tmp_path, rollouts, step=1, max_staleness=2) as (pipeline, ledger):
            for step in range(1, 4):
                commit(ledger, step, await pipeline.collect(step))
            trained = {entry.rollout_id for entry in ledger.entries() if entry.step is not None}
            positions = [entry.position for entry in ledger.entries() if entry.step is not None]
            assert finished <= trained
            assert Counter(positions) == dict.fromkeys(range(8), 2)
            assert max(entry.staleness or 0 for entry in ledger.entries()) <= 2
            assert ledger.balance().in_flight == 0
        assert len(rollouts.begun) - before == 16 - len(finished)

    asyncio.run(run())


def test_broken_task_is_set_aside_and_its_group_filled_by_another(tmp_path: Path):
    async def act(attempt: Attempt) -> float | None:
        return None if attempt.task.id == "t3" and attempt.index == 1 else float(attempt.index)

    async def run() -> None:
        async with running(tmp_path, Acted(act), attempts=2, steps=6) as (pipeline, ledger):
            for step in range(6):  # two epochs
                batch = await pipeline.collect(step)
                assert all(group.task.id != "t3" and len(group.trajectories) == 2 for group in batch)
                commit(ledger, step, batch)
            asides = ledger.tasks_set_aside()
            assert {aside.task_id for aside in asides} == {"t3"}
            assert "2 rollouts in a row" in asides[0].reason
            assert "no such image" in asides[0].reason
            # once in the first epoch, again in the second, when the first time was over
            assert [
                aside.until - int(aside.group_id[1]) * 2 - int(aside.group_id[3]) for aside in asides
            ] in (
                [6, 12],
                [6],
            )
            balance = ledger.balance()
            assert balance.trained == 24
            assert balance.dropped["sandbox_error"] == 2 * len(asides)

    asyncio.run(run())


def test_task_without_its_repository_is_set_aside(tmp_path: Path):
    async def run() -> None:
        async with running(tmp_path, Acted(at_once, unpreparable={"t0"})) as (pipeline, ledger):
            for step in range(4):
                commit(ledger, step, await pipeline.collect(step))
            assert [aside.reason for aside in ledger.tasks_set_aside()] == ["there is no such commit"] * len(
                ledger.tasks_set_aside()
            )
            assert ledger.tasks_set_aside()

    asyncio.run(run())


def test_broken_infrastructure_stops_the_run_and_is_named(tmp_path: Path):
    async def act(attempt: Attempt) -> None:
        return None

    async def run() -> None:
        async with running(tmp_path, Acted(act), tasks=40, attempts=1, groups_per_step=4) as (pipeline, _):
            await pipeline.collect(0)

    with pytest.raises(RolloutError, match=r"9 of the last 9 groups .*fault_budget = 0\.5.*no such image"):
        asyncio.run(run())
    with Ledger.read(tmp_path) as ledger:
        assert ledger.balance().in_flight == 0


def test_run_whose_tasks_are_all_broken_says_so(tmp_path: Path):
    async def act(attempt: Attempt) -> None:
        return None

    async def run() -> None:
        async with running(tmp_path, Acted(act), tasks=2, attempts=1, fault_budget=1.0) as (pipeline, _):
            await pipeline.collect(0)

    with pytest.raises(RolloutError, match=r"every task is set aside .*no such image"):
        asyncio.run(run())


def test_run_without_a_fault_budget_stops_at_the_first_broken_task(tmp_path: Path):
    async def act(attempt: Attempt) -> float | None:
        return None if attempt.task.id == "t1" else 1.0

    async def run() -> None:
        async with running(tmp_path, Acted(act), attempts=1, fault_budget=0.0) as (pipeline, ledger):
            for step in range(4):
                commit(ledger, step, await pipeline.collect(step))

    with pytest.raises(RolloutError, match=r"1 of the last \d+ groups"):
        asyncio.run(run())


def test_set_aside_task_stays_so_in_the_next_process(tmp_path: Path):
    async def act(attempt: Attempt) -> float | None:
        return None if attempt.task.id == "t3" else float(attempt.index)

    async def run() -> None:
        first = Acted(act)
        async with running(tmp_path, first, attempts=1, groups_per_step=6, steps=1) as (pipeline, _):
            groups = await pipeline.collect(0)
        again = Acted(act)
        again.stored = dict(first.stored)
        async with running(tmp_path, again, attempts=1, groups_per_step=6, steps=1) as (pipeline, ledger):
            same = await pipeline.collect(0)
            assert again.begun == []
            assert [g.task.id for g in same] == [g.task.id for g in groups]
            assert len(ledger.tasks_set_aside()) == 1

    asyncio.run(run())


def test_task_that_gives_no_signal_is_visited_less(tmp_path: Path):
    async def act(attempt: Attempt) -> float:
        return 1.0 if attempt.task.id == "t0" else float(attempt.index)

    async def visits(root: Path, **settings: object) -> int:
        seen = Counter[str]()
        async with running(root, Acted(act), tasks=4, steps=40, **settings) as (pipeline, ledger):
            for step in range(40):
                batch = await pipeline.collect(step)
                seen.update(group.task.id for group in batch)
                commit(ledger, step, batch)
        return seen["t0"]

    assert asyncio.run(visits(tmp_path / "all")) == 20
    assert 3 <= asyncio.run(visits(tmp_path / "less", curriculum_visits=2)) <= 12


def test_urgent_and_long_rollouts_get_the_next_free_slot(tmp_path: Path):
    async def run() -> None:
        async def act(attempt: Attempt) -> float:
            await asyncio.sleep(0.002 if attempt.task.id == "t2" else 0)
            return float(attempt.index)

        rollouts = Acted(act)
        settings = {"concurrent_episodes": 1, "group_size": 1}
        async with running(tmp_path, rollouts, tasks=3, groups_per_step=3, **settings) as (pipeline, ledger):
            for step in range(2):
                commit(ledger, step, await pipeline.collect(step))
            tasks_of = {e.rollout_id: e.task_id for e in ledger.entries()}
        waited = [tasks_of[rollout_id] for rollout_id in rollouts.begun if rollout_id.startswith("s1")]
        # the first takes the free slot; of those that wait for it, the one that took longest is next
        assert "t2" in waited[:2]

    asyncio.run(run())


def test_error_of_a_rollout_reaches_the_waiting_step(tmp_path: Path):
    async def act(attempt: Attempt) -> float:
        raise ZeroDivisionError

    async def run() -> None:
        async with running(tmp_path, Acted(act), max_staleness=1) as (pipeline, _):
            await pipeline.collect(0)

    with pytest.raises(ZeroDivisionError):
        asyncio.run(run())
    with Ledger.read(tmp_path) as ledger:
        assert ledger.balance().in_flight == 0
