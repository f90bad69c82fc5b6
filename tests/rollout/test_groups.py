from __future__ import annotations

import asyncio
import tempfile
import threading
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hone.agents import AgentRun
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.policy.reply import Chat
from hone.rollout.episode import RolloutContext
from hone.rollout.errors import RolloutError, StoreError
from hone.rollout.groups import Group, RolloutProgress, seed_of
from hone.rollout.ledger import TRAINED, Ledger
from hone.rollout.store import Store
from hone.sandbox import Sandbox, SandboxLost
from hone.types import Task, Trajectory
from tests.rollout.collecting import Collector
from tests.rollout.memory import World
from tests.rollout.real import Hanging, gold, open_context, script, tasks

MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@asynccontextmanager
async def collecting(
    root: Path, agent: Any, progress: Callable[[RolloutProgress], None] = lambda _: None, **options: Any
) -> AsyncGenerator[tuple[Collector, Ledger, RolloutContext]]:
    async with open_context(root, agent, **options) as context:
        with Ledger.open(root / "run") as ledger:
            store = Store(root / "run" / "rollouts")
            yield Collector(context, ledger, store, seed=7, progress=progress), ledger, context


def commit(ledger: Ledger, groups: Sequence[Group], step: int = 0) -> None:
    ledger.commit_step(step, {t.rollout_id: TRAINED for group in groups for t in group.trajectories})


@pytest.mark.sandbox
def test_step_returns_one_stored_group_per_task(tmp_path: Path):
    async def run() -> None:
        seen: list[RolloutProgress] = []
        agent = script(lambda task, rollout_id: [gold(task)] if rollout_id.endswith("-0") else [])
        async with collecting(tmp_path, agent, seen.append) as (collector, ledger, _):
            groups = await collector.collect(0, tasks(2))
            assert [group.task.id for group in groups] == [task.id for task in tasks(2)]
            for group in groups:
                assert [t.outcome for t in group.trajectories] == [Outcome.RESOLVED, Outcome.NO_PATCH]
                assert len({t.seed for t in group.trajectories}) == 2
            directories = {entry.directory for entry in ledger.entries()}
            assert {path.name for path in (tmp_path / "run" / "rollouts").iterdir()} == directories
            commit(ledger, groups)
            assert (ledger.balance().trained, ledger.balance().in_flight) == (4, 0)
        assert seen[-1] == RolloutProgress(planned=4, ended=4, solved=2)

    asyncio.run(run())


@pytest.mark.sandbox
def test_interrupted_step_reuses_finished_rollouts(tmp_path: Path):
    worked: Counter[str] = Counter()

    def commands(task: Task, rollout_id: str) -> list[str]:
        worked[rollout_id] += 1
        return [gold(task)] if rollout_id.endswith("-0") else []

    async def collect() -> list[Trajectory]:
        async with collecting(tmp_path, script(commands)) as (collector, *_):
            groups = await collector.collect(0, tasks(2))
            return [t for group in groups for t in group.trajectories]

    first = asyncio.run(collect())
    damaged = next((tmp_path / "run" / "rollouts").glob("*__g1__i1__*"))
    (damaged / "traj.json").unlink()
    (tmp_path / "run" / "rollouts" / "t__g0__i0__1").mkdir()  # stored by a process that died before its row
    second = asyncio.run(collect())
    assert not (tmp_path / "run" / "rollouts" / "t__g0__i0__1").exists()
    assert worked == {"s0g0-0": 1, "s0g0-1": 1, "s0g1-0": 1, "s0g1-1": 1, "s0g1-1-1": 1}
    assert [t.rollout_id for t in second] == ["s0g0-0", "s0g0-1", "s0g1-0", "s0g1-1-1"]
    assert [t.patch for t in first] == [t.patch for t in second]
    with Ledger.open(tmp_path / "run") as ledger:
        assert ledger.balance().dropped == {"unreadable": 1}


@pytest.mark.sandbox
def test_rollouts_of_other_weights_or_tasks_are_not_reused(tmp_path: Path):
    async def run() -> None:
        async with collecting(tmp_path, script(lambda task, _: [])) as (collector, ledger, _):
            await collector.collect(0, tasks(1))
            await collector.collect(1, tasks(1))
            assert ledger.balance().dropped == {"stale": 2}
        async with collecting(tmp_path, script(lambda task, _: []), group_size=1) as (collector, ledger, _):
            groups = await collector.collect(1, tasks(1))
            assert ledger.balance().dropped == {"stale": 2, "superseded": 1}
            commit(ledger, groups, step=1)

    asyncio.run(run())


@pytest.mark.sandbox
def test_cancellation_ends_rollouts_and_closes_sandboxes(tmp_path: Path):
    async def run() -> None:
        agent = Hanging()
        async with collecting(tmp_path, agent, concurrent_episodes=3) as (collector, ledger, context):
            job = asyncio.create_task(collector.collect(0, tasks(2)))
            while agent.waiting < 3:
                await agent.arrived.wait()
                agent.arrived.clear()
            job.cancel()
            with pytest.raises(asyncio.CancelledError):
                await job
            started = context.provider.started  # type: ignore[attr-defined]
            assert len(started) == 3  # the fourth waits for a place
            for sandbox in started:
                with pytest.raises(SandboxLost):
                    await sandbox.exec("true")
            balance = ledger.balance()
            assert (balance.dispatched, balance.dropped, balance.in_flight) == (3, {"cancelled": 3}, 0)

    asyncio.run(run())


@pytest.fixture(scope="module")
def workspaces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made once: preparing a repository is the slow part."""
    return tmp_path_factory.mktemp("workspaces")


@settings(max_examples=40, deadline=None)
@given(
    faults=st.lists(st.sampled_from([None, None, None, "fault", "defect"]), max_size=30),
    loop_turns=st.integers(0, 60),
)
def test_ledger_balances_under_any_faults_and_cancellations(
    workspaces: Path, faults: list[str | None], loop_turns: int
):
    async def run(root: Path, ledger: Ledger) -> None:
        (root / "workspaces").symlink_to(workspaces)
        collector = World(faults).collector(root, ledger, concurrent_episodes=3)
        job = asyncio.create_task(collector.collect(0, tasks(2)))
        for _ in range(loop_turns):
            await asyncio.sleep(0)
        job.cancel()
        # retrieved, or Python would report it while it collects garbage in the middle of another test
        await asyncio.gather(job, return_exceptions=True)
        for entry in ledger.entries():
            assert entry.outcome is not None
            infrastructure = OUTCOME_RULES[entry.outcome].fault is Fault.INFRASTRUCTURE
            assert (entry.disposition == "dropped") == infrastructure
        ledger.balance()
        groups = await World([]).collector(root, ledger).collect(0, tasks(2))
        assert [len(group.trajectories) for group in groups] == [2, 2]
        commit(ledger, groups)
        assert ledger.balance().trained == 4
        assert ledger.balance().in_flight == 0

    with tempfile.TemporaryDirectory(dir=MEMORY) as root, Ledger.open(Path(root)) as ledger:
        asyncio.run(run(Path(root), ledger))


def test_cancelled_rollout_ends_with_its_reason(workspaces: Path, tmp_path: Path):
    class Endless(World):
        def __init__(self) -> None:
            super().__init__([])
            self.begun = asyncio.Event()

        async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
            self.begun.set()
            await asyncio.get_running_loop().create_future()

    async def run(ledger: Ledger) -> None:
        world, seen = Endless(), list[RolloutProgress]()
        collector = world.collector(tmp_path, ledger, progress=seen.append)
        job = asyncio.create_task(collector.collect(0, tasks(1)))
        await world.begun.wait()
        assert seen[-1].running == 2
        job.cancel()
        with pytest.raises(asyncio.CancelledError):
            await job
        assert seen[-1].running == 0

    (tmp_path / "workspaces").symlink_to(workspaces)
    with Ledger.open(tmp_path) as ledger:
        asyncio.run(run(ledger))
        assert {(entry.outcome, entry.reason) for entry in ledger.entries()} == {
            (Outcome.CANCELLED, "cancelled")
        }


def test_cancelled_collection_removes_nothing_of_the_next_one(workspaces: Path, tmp_path: Path):
    begun, told = threading.Event(), threading.Event()

    class SlowToSweep(Store):
        def sweep(self, known: Iterable[str]) -> int:
            begun.set()
            assert told.wait(60)
            return super().sweep(known)

    async def run(ledger: Ledger) -> None:
        context = World([]).context(tmp_path)
        store = tmp_path / "rollouts"
        first = Collector(context, ledger, SlowToSweep(store), seed=0)
        job = asyncio.create_task(first.collect(0, tasks(1)))
        assert await asyncio.to_thread(begun.wait, 60)
        job.cancel()
        done, _ = await asyncio.wait([job], timeout=0.01)
        if done:  # the next one may begin
            await Collector(context, ledger, Store(store), seed=0).collect(0, tasks(1))
        told.set()
        with pytest.raises(asyncio.CancelledError):
            await job
        groups = await Collector(context, ledger, Store(store), seed=0).collect(0, tasks(1))
        commit(ledger, groups)

    (tmp_path / "workspaces").symlink_to(workspaces)
    with Ledger.open(tmp_path) as ledger:
        asyncio.run(run(ledger))
        stored = {entry.directory for entry in ledger.entries()}
        assert {path.name for path in (tmp_path / "rollouts").iterdir()} == stored


def test_rollout_seeds_depend_on_the_run_seed(tmp_path: Path):
    def seeds(run_seed: int) -> list[int | None]:
        root = tmp_path / str(run_seed)
        with Ledger.open(root) as ledger:
            store = Store(root / "rollouts")
            collector = Collector(World([]).context(root), ledger, store, seed=run_seed)
            groups = asyncio.run(collector.collect(0, tasks(2)))
        return [trajectory.seed for group in groups for trajectory in group.trajectories]

    assert len({*seeds(0), *seeds(1)}) == 8


@pytest.mark.parametrize(("outcome", "same"), [(Outcome.CANCELLED, True), (Outcome.SANDBOX_ERROR, False)])
def test_interrupted_rollout_keeps_its_seed(tmp_path: Path, outcome: Outcome, same: bool):
    with Ledger.open(tmp_path) as ledger:
        ledger.dispatch(
            "s0g0-0", group_id="s0g0", index=0, position=0, task_id=tasks(1)[0].id, sampled_version=0
        )
        ledger.end("s0g0-0", outcome)
        collector = Collector(World([]).context(tmp_path), ledger, Store(tmp_path / "rollouts"), seed=3)
        (group,) = asyncio.run(collector.collect(0, tasks(1)))
    assert group.trajectories[0].rollout_id == "s0g0-0-1"
    assert (group.trajectories[0].seed == seed_of(3, "s0g0-0")) == same


def test_progress_counts_planned_ended_solved_and_reused_rollouts(tmp_path: Path):
    seen: list[tuple[int, int, int, int]] = []

    def record(progress: RolloutProgress) -> None:
        assert progress.running >= 0
        seen.append((progress.planned, progress.ended, progress.solved, progress.reused))

    def collect(ledger: Ledger) -> None:
        store = Store(tmp_path / "rollouts")
        collector = Collector(
            World([]).context(tmp_path, group_size=3), ledger, store, seed=0, progress=record
        )
        asyncio.run(collector.collect(0, tasks(2)))

    with Ledger.open(tmp_path) as ledger:
        collect(ledger)
        assert seen[-1] == (6, 6, 6, 0)
        collect(ledger)
        assert seen[-1] == (6, 6, 6, 6)


def test_infrastructure_fault_is_dropped_and_retried(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        world, seen = World(["fault", None, "fault"]), list[RolloutProgress]()
        collector = world.collector(tmp_path, ledger, progress=seen.append)
        groups = asyncio.run(collector.collect(0, tasks(1)))
        assert seen[-1] == RolloutProgress(planned=2, ended=2, solved=2, faults=2)
        assert [t.reward for t in groups[0].trajectories] == [1.0, 1.0]
        balance = ledger.balance()
        assert (balance.dispatched, balance.in_flight, sum(balance.dropped.values())) == (4, 2, 2)
        assert len({entry.rollout_id for entry in ledger.entries()}) == 4


def test_repeated_infrastructure_faults_stop_the_step(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        world = World(["fault"] * 100)
        with pytest.raises(RolloutError, match=r"3 rollouts in a row .* sandbox_error \(injected\)"):
            asyncio.run(world.collector(tmp_path, ledger, group_size=1).collect(0, tasks(1)))
        assert ledger.balance().dropped == {"sandbox_error": 3}


def test_full_disk_stops_the_step_and_is_in_the_ledger(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        collector = World([None, None, "defect"]).collector(tmp_path, ledger, group_size=1)
        with pytest.raises(StoreError):
            asyncio.run(collector.collect(0, tasks(1)))
        assert ledger.balance().dropped == {"crashed: StoreError": 1}


class Defective(World):
    """The agent of its first rollout has a defect."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        if self.most_at_once == 0:
            self.most_at_once = 1
            raise ZeroDivisionError
        await super().run(task, sandbox, chat, run)


def test_unexpected_error_of_one_rollout_leaves_the_others(tmp_path: Path):
    with Ledger.open(tmp_path) as ledger:
        world = Defective([])
        groups = asyncio.run(world.collector(tmp_path, ledger).collect(0, tasks(1)))
        assert [t.reward for t in groups[0].trajectories] == [1.0, 1.0]
        assert ledger.balance().dropped == {"sandbox_error": 1}


class Meeting(World):
    """Its first rollouts wait for each other until as many as may be under way are."""

    def __init__(self, together: int) -> None:
        super().__init__([])
        self._together = together
        self._met = asyncio.Event()

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        if self.at_once == self._together:
            self._met.set()
        await self._met.wait()
        self.at_once -= 1


def test_concurrent_rollouts_reach_and_keep_the_limit(tmp_path: Path):
    running: list[int] = []
    world = Meeting(together=2)
    with Ledger.open(tmp_path) as ledger:
        collector = Collector(
            world.context(tmp_path, group_size=6, concurrent_episodes=2),
            ledger,
            Store(tmp_path / "rollouts"),
            seed=0,
            progress=lambda progress: running.append(progress.running),
        )
        asyncio.run(asyncio.wait_for(collector.collect(0, tasks(2)), 60))
    assert (max(running), world.most_at_once) == (2, 2)


class Deciding(World):
    """Solves where told; elsewhere submits nothing."""

    async def extract(self, sandbox: Sandbox, task: Task, *, intact: bool = False) -> str:
        return ""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        self.solving.add(run.rollout_id)
        run.ending = Outcome.FORMAT_LIMIT if self._solves(run.rollout_id) else None


def test_zero_variance_group_is_replaced_a_limited_number_of_times(tmp_path: Path):
    varied = {"s0g1r1-0"}  # the only rollout with another reward: the first replacement of the second group
    rewards = {Outcome.FORMAT_LIMIT: -0.5}
    options: dict[str, Any] = {"replace_constant_groups": 2, "rewards": rewards}
    with Ledger.open(tmp_path) as ledger:
        world = Deciding([], lambda rollout_id: rollout_id in varied)
        one, two, *spare = tasks(6)
        seen: list[RolloutProgress] = []
        collector = world.collector(tmp_path, ledger, progress=seen.append, **options)
        groups = asyncio.run(collector.collect(0, [one, two], spare))
        assert (seen[-1].planned, seen[-1].ended) == (4, 4)  # those of replaced groups count no more
        assert [group.group_id for group in groups] == ["s0g0r2", "s0g1r1"]
        assert [group.task.id for group in groups] == [spare[2].id, spare[1].id]
        assert [group.zero_variance for group in groups] == [True, False]
        assert ledger.balance().dropped == {"constant": 6}

        again = Deciding([], lambda rollout_id: rollout_id in varied)
        same = asyncio.run(again.collector(tmp_path, ledger, **options).collect(0, [one, two], spare))
        assert [group.group_id for group in same] == ["s0g0r2", "s0g1r1"]
        assert not again.solving  # nothing was rolled out again
        commit(ledger, same)


def test_seed_depends_on_all_its_parts():
    assert len({seed_of(*parts) for parts in [(0, "a"), (1, "a"), (0, "b"), (0, "a", 0)]}) == 4
    assert seed_of(0, "a") == seed_of(0, "a")
    assert 0 <= seed_of("x") < 2**63
