"""Rollouts give their sandboxes back while they wait for replies, and nobody can tell."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hone.agents import AgentRun, BashAgent
from hone.agents.contract import Limits, Step, run_loop
from hone.grading import Grader, GradingSettings
from hone.outcomes import Outcome
from hone.policy.reply import CallKind, Chat, Reply
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.errors import RolloutError
from hone.rollout.parking import Parking, Place, open_parking
from hone.rollout.settings import RolloutSettings
from hone.rollout.slots import Slots
from hone.rollout.time_limit import TimeLimit
from hone.sandbox import Sandbox, SandboxLost, SandboxSpec, make_provider
from hone.sandbox.namespaces import snapshots
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare
from hone.types import Call, Message, Task, TokenTree, Trajectory
from tests.rollout.memory import MemorySandbox, World
from tests.rollout.real import SCAFFOLD, FaultyProvider, gold, open_context, tasks
from tests.virtual_time import run
from tests.waiting import HeldFunction, wait_until_async

Gate = Callable[[Episode], Awaitable[object]]
SUBMIT = f"echo {SCAFFOLD.submits[0]}"
AT_ONCE = 0.01  # seconds; replies come when a test lets them


class Gated:
    """A conversation whose replies are commands; each comes when `gate` lets it."""

    max_prompt_tokens = 1 << 20

    def __init__(self, commands: Sequence[str], gate: Callable[[], Awaitable[object]]) -> None:
        self.tree = TokenTree()
        self.forks = Counter[str]()
        self.calls: list[Call] = []
        self._commands = iter(commands)
        self._gate = gate

    def measure(self, messages: Sequence[Message], *, tools: Any = None) -> int:
        return 0

    async def reply(
        self, messages: list[Message], *, tools: Any = None, purpose: CallKind = CallKind.MAIN
    ) -> Reply:
        await self._gate()
        return Reply(content=SCAFFOLD.reply(next(self._commands)), node=None)

    async def close(self) -> None:
        return None


def episode(context: RolloutContext, number: int = 0) -> Episode:
    (task,) = tasks(1)
    workspace = prepare(task, context.workspaces)
    return Episode(task=task, rollout_id=f"r{number}", group_id="g", workspace=workspace, seed=1)


async def roll_out(
    context: RolloutContext, commands: Sequence[str], gate: Gate, own: Episode | None = None
) -> Trajectory:
    """One rollout that runs `commands` and submits, each reply after `gate`."""
    own = own or episode(context)
    replies = [*commands, SUBMIT]
    changed = dataclasses.replace(context, new_chat=lambda i, seed: Gated(replies, lambda: gate(own)))
    return await run_episode(own, changed)


def parking_of(context: RolloutContext) -> Parking:
    assert context.parking is not None
    return context.parking


def when_parked(context: RolloutContext) -> Gate:
    """Lets a reply come once the only place is free, as the rollout has given its sandbox back."""

    async def gate(own: Episode) -> None:
        async with parking_of(context).places.hold((2.0,)):
            pass

    return gate


@asynccontextmanager
async def one_place(root: Path, **options: Any) -> AsyncGenerator[RolloutContext]:
    """A context with one sandbox, in which rollouts park at once; at its end, nothing is left."""
    settings = {"park_after_s": AT_ONCE, "sandboxes": 1, **options}
    async with open_context(root, BashAgent(SCAFFOLD), **settings) as context:
        yield context
        await assert_nothing_left(context)


async def assert_nothing_left(context: RolloutContext) -> None:
    assert list(parking_of(context).folder.iterdir()) == []
    for sandbox in started(context):
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")
    async with asyncio.timeout(60), parking_of(context).places.hold((0.0,)):
        pass  # the place is free again


def started(context: RolloutContext) -> list[Sandbox]:
    return context.provider.started  # type: ignore[attr-defined]


# --- what a rollout sees

_LOOK = "ls -lan --time-style=+ . made /tmp | grep -v total; id; pwd; cat made/a /tmp/x; git status --short"
_COMMANDS = (
    "mkdir made; echo a > made/a; ln made/a made/b; ln -s b made/c; echo x > /tmp/x; chmod 711 made",
    _LOOK,
    'cd /; python3 -c \'import os; os.rename("/testbed/made", "/testbed/other")\' && ls /testbed/other',
    f"mv other made; echo more >> made/b; {_LOOK}; rm -r made",
)


@pytest.mark.sandbox
def test_parked_rollout_equals_one_that_keeps_its_sandbox(tmp_path: Path) -> None:
    async def roll(folder: Path, *, park: bool) -> Trajectory:
        commands = [gold(tasks(1)[0]), *_COMMANDS]
        if not park:
            async with open_context(folder, BashAgent(SCAFFOLD)) as context:
                return await roll_out(context, commands, lambda own: asyncio.sleep(0))
        async with one_place(folder) as context:
            done = await roll_out(context, commands, when_parked(context))
            assert len(started(context)) == len(commands) + 2  # parked before each command, and the last
            return done

    kept = asyncio.run(roll(tmp_path / "kept", park=False))
    parked = asyncio.run(roll(tmp_path / "parked", park=True))
    assert (parked.outcome, parked.patch, parked.error) == (Outcome.RESOLVED, kept.patch, None)
    assert parked.messages == kept.messages
    assert parked.notes["parked"] == len(_COMMANDS) + 2
    assert parked.timings["park"] > 0
    assert parked.timings["restore"] > 0


@pytest.mark.sandbox
def test_sandbox_with_a_live_process_is_kept(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_place(tmp_path) as context:

            async def gate(own: Episode) -> None:
                if own.run.turns:
                    await wait_until_async(lambda: "not_parked" in own.run.notes)

            commands = ["sleep 1000 >/dev/null 2>&1 & echo $! > pid", "kill -0 $(cat pid) && echo alive"]
            done = await roll_out(context, commands, gate)
            assert "alive" in done.turns[1].observation
            assert done.notes["not_parked"] == "the sandbox has a process, which a snapshot cannot hold"

    asyncio.run(scenario())


@pytest.mark.sandbox
def test_patch_is_graded_in_a_sandbox_without_the_agents_files(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_place(tmp_path) as context:
            grader = Grader(context.provider, GradingSettings(), cache=context.workspaces)
            changed = dataclasses.replace(context, grader=grader)
            done = await roll_out(changed, [gold(tasks(1)[0])], when_parked(context))
            assert done.outcome is Outcome.RESOLVED
            first, *restored, graded = [sandbox.spec.snapshot for sandbox in started(context)]
            assert all(restored)
            assert (first, graded) == (None, None)

    asyncio.run(scenario())


# --- places


@pytest.mark.sandbox
def test_more_rollouts_than_sandboxes_wait_for_replies_at_once(tmp_path: Path) -> None:
    rollouts = 4

    async def scenario() -> None:
        async with one_place(tmp_path) as context:
            waiting = Counter[int]()
            changed = asyncio.Condition()

            async def gate(own: Episode) -> None:
                """Lets a turn's replies come once all rollouts wait for theirs: all but one are parked."""
                turn = len(own.run.turns)
                async with changed:
                    waiting[turn] += 1
                    changed.notify_all()
                    await changed.wait_for(lambda: waiting[turn] == rollouts)

            commands = ["echo x > x", "cat x"]
            all_of_them = [roll_out(context, commands, gate, episode(context, n)) for n in range(rollouts)]
            done = await asyncio.gather(*all_of_them)
            assert {trajectory.outcome for trajectory in done} <= {Outcome.UNRESOLVED, Outcome.RESOLVED}
            assert all("x" in trajectory.turns[1].observation for trajectory in done)
            assert context.busy.shares()["parked"] > 0

    asyncio.run(scenario())


def test_place_goes_to_the_oldest_rollout_that_has_begun() -> None:
    async def scenario() -> list[str]:
        parking = Parking(after_s=1.0, folder=Path("none"), places=Slots(1))
        served: list[str] = []
        places = {name: Place(parking, since) for name, since in (("young", 2.0), ("old", 1.0), ("new", 0.0))}
        for name in ("young", "old"):
            await places[name].take()
            places[name].release()
        await parking.places.acquire((0.0,))

        async def take(name: str) -> None:
            await places[name].take()
            served.append(name)
            places[name].release()
            places[name].release()  # no second one

        async with asyncio.TaskGroup() as jobs:
            for name in ("new", "young", "old"):
                jobs.create_task(take(name))
            await asyncio.sleep(0)
            parking.places.release()
        async with parking.places.hold((0.0,)):
            with pytest.raises(TimeoutError):  # there is still one place
                await asyncio.wait_for(parking.places.acquire((0.0,)), 1.0)
        return served

    assert run(scenario()) == ["old", "young", "new"]


def test_rollout_that_gets_no_place_in_time_is_an_infrastructure_fault(tmp_path: Path) -> None:
    async def scenario() -> Trajectory:
        context = World([]).context(tmp_path)
        parking = Parking(after_s=1.0, folder=tmp_path, places=Slots(1))
        (task,) = tasks(1)
        own = Episode(task=task, rollout_id="r", group_id="g", workspace=tmp_path, seed=1)
        async with parking.places.hold((0.0,)):
            return await run_episode(own, dataclasses.replace(context, parking=parking))

    done = run(scenario())
    assert (done.outcome, done.error) == (Outcome.SANDBOX_ERROR, "no sandbox became free within 3600 s")


# --- time


def test_wait_for_a_sandbox_extends_the_time_limit() -> None:
    async def scenario() -> tuple[float, float]:
        loop = asyncio.get_running_loop()
        began = loop.time()
        with pytest.raises(TimeoutError):  # noqa: PT012
            async with asyncio.timeout(10.0) as timeout:
                limit = TimeLimit(timeout)
                with limit.paused():
                    await asyncio.sleep(4.0)  # a reply, which counts
                with limit.extended(), limit.paused():
                    await asyncio.sleep(100.0)
                resumed = loop.time()
                await asyncio.Event().wait()
        return resumed - began, loop.time() - began

    assert run(scenario()) == (104.0, 110.0)


def test_restoring_takes_no_time_of_the_agent(tmp_path: Path) -> None:
    class Restorable(MemorySandbox):
        async def snapshot(self, target: Path, *, whole: bool = False) -> None:
            await asyncio.to_thread(target.mkdir)

    class Slow(World):
        """Starts a sandbox from a snapshot in 100 s; its agent needs 50 s for a reply, and 5 s after that."""

        async def start(self, spec: SandboxSpec) -> Sandbox:
            await asyncio.sleep(100.0 if spec.snapshot else 0.0)
            return Restorable()

        async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
            await chat.reply([])
            await sandbox.exec("true")
            await asyncio.sleep(5.0)

    def roll(time_limit_s: float) -> Trajectory:
        world = Slow([])
        context = world.context(tmp_path, time_limit_s=time_limit_s)
        parking = Parking(after_s=10.0, folder=tmp_path, places=Slots(1))
        chats = {"new_chat": lambda rollout_id, seed: Gated([SUBMIT], lambda: asyncio.sleep(50.0))}
        (task,) = tasks(1)
        own = Episode(task=task, rollout_id="r", group_id="g", workspace=tmp_path, seed=1)
        return run(run_episode(own, dataclasses.replace(context, parking=parking, **chats)))

    done = roll(56.0)
    assert (done.outcome, done.notes["parked"]) == (Outcome.RESOLVED, 1)
    assert roll(54.0).outcome is Outcome.TIME_LIMIT  # the control


def test_wait_for_a_sandbox_counts_towards_no_limit_of_the_agent() -> None:
    class Waits(Gated):
        async def reply(self, messages: list[Message], **options: Any) -> Reply:
            await asyncio.sleep(3.0)
            return Reply(content="", node=None)

    async def scenario(waited_s: float) -> AgentRun:
        own = AgentRun()

        async def act(reply: Reply) -> Step:
            await asyncio.sleep(waited_s)
            own.waited_s += waited_s
            return Step(action="true")

        await run_loop(Waits([], asyncio.Event().wait), own, Limits(seconds=10.0), act)
        return own

    for waited_s in (0.0, 100.0):
        own = run(scenario(waited_s))
        assert (own.ending, len(own.turns)) == (Outcome.TIME_LIMIT, 4)


# --- faults and endings


@pytest.mark.sandbox
def test_fault_while_restoring_is_an_infrastructure_fault(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_place(tmp_path, fails=lambda i: i == 1) as context:
            done = await roll_out(context, ["true", "true"], when_parked(context))
            assert (done.outcome, done.reward) == (Outcome.SANDBOX_ERROR, None)
            assert done.error == "the parked sandbox cannot be restored: injected"

    asyncio.run(scenario())


@pytest.mark.sandbox
def test_fault_while_parking_keeps_the_sandbox(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_place(tmp_path) as context:
            (tmp_path / "file").touch()
            unusable = dataclasses.replace(parking_of(context), folder=tmp_path / "file")

            async def gate(own: Episode) -> None:
                await wait_until_async(lambda: "not_parked" in own.run.notes)

            broken = dataclasses.replace(context, parking=unusable)
            done = await roll_out(broken, ["echo fine"], gate)
            assert "fine" in done.turns[0].observation
            assert "Not a directory" in done.notes["not_parked"]
            assert len(started(context)) == 1

    asyncio.run(scenario())


@pytest.mark.sandbox
@pytest.mark.parametrize("moment", ["parking", "parked", "waiting", "restoring"])
def test_cancelled_rollout_leaves_neither_sandbox_nor_snapshot(
    moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Restoring(FaultyProvider):
        """Starts no sandbox from a snapshot, and tells when it is asked to."""

        async def start(self, spec: SandboxSpec) -> Sandbox:
            if spec.snapshot is not None:
                reached.set()
                await asyncio.Event().wait()
            return await super().start(spec)

    reached = asyncio.Event()

    async def scenario() -> None:
        async with one_place(tmp_path) as context:
            held = HeldFunction(monkeypatch, snapshots, "take") if moment == "parking" else None
            places = parking_of(context).places
            provider = Restoring(context.provider)
            provider.started = started(context)

            async def gate(own: Episode) -> None:
                if moment != "parking":
                    await places.acquire((2.0,))  # it is parked
                    reached.set()
                if moment in ("parking", "parked"):
                    await asyncio.Event().wait()
                if moment == "restoring":
                    reached.clear()
                    places.release()

            rollout = asyncio.create_task(
                roll_out(dataclasses.replace(context, provider=provider), ["true"], gate)
            )
            if held is not None:
                await held.begun()
            else:
                await reached.wait()
            if moment == "waiting":
                await wait_until_async(lambda: len(places._waiters) == 1)
            elif moment == "restoring":
                await wait_until_async(lambda: reached.is_set() and places._free == 0)
            rollout.cancel()
            if held is not None:
                held.release()
            with pytest.raises(asyncio.CancelledError):
                await rollout
            if moment in ("parked", "waiting"):
                places.release()

    asyncio.run(scenario())


@pytest.mark.sandbox
def test_rollout_cancelled_while_its_sandbox_is_given_back_closes_it(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with one_place(tmp_path) as context:
            closing, let = asyncio.Event(), asyncio.Event()

            class SlowToClose(FaultyProvider):
                async def start(self, spec: SandboxSpec) -> Sandbox:
                    sandbox = await super().start(spec)
                    close = sandbox.close

                    async def close_later() -> None:
                        closing.set()
                        await let.wait()
                        await close()

                    sandbox.close = close_later  # type: ignore[method-assign]
                    return sandbox

            provider = SlowToClose(context.provider)
            changed = dataclasses.replace(context, provider=provider)
            rollout = asyncio.create_task(roll_out(changed, [], lambda own: asyncio.Event().wait()))
            await closing.wait()
            rollout.cancel()
            await asyncio.sleep(0)
            let.set()
            with pytest.raises(asyncio.CancelledError):
                await rollout

    asyncio.run(scenario())


@pytest.mark.sandbox
def test_killed_run_leaves_nothing_after_the_next_start(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.rollout.parked_process", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "parked\n"
        state = tmp_path / "state"
        assert len(list(state.glob("*/*/snapshot.json"))) == 1
        process.send_signal(signal.SIGKILL)

    async def reconcile() -> None:
        async with make_provider(SandboxSettings(state_dir=state)):
            assert list(state.glob("*/*/snapshot.json")) == []

    asyncio.run(reconcile())
    assert list(state.iterdir()) == []


# --- settings


def test_provider_without_snapshots_is_refused_before_work_begins(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with open_parking(RolloutSettings(park_after_s=60.0), World([]), tmp_path):
            raise AssertionError

    with pytest.raises(RolloutError, match=r"fails here \(MemorySandbox has no snapshots\): remove it"):
        asyncio.run(scenario())
    assert list(tmp_path.iterdir()) == []


def test_parking_settings_without_effect_are_refused() -> None:
    with pytest.raises(ValueError, match="sandboxes has no effect without park_after_s"):
        RolloutSettings(sandboxes=4)
    with pytest.raises(ValueError, match="no reply takes longer than reply_timeout_s"):
        RolloutSettings(park_after_s=300.0)
    assert RolloutSettings(concurrent_episodes=8).sandboxes_at_once == 8
    assert RolloutSettings(concurrent_episodes=8, park_after_s=1.0, sandboxes=4).sandboxes_at_once == 4
