from __future__ import annotations

import asyncio
import dataclasses
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from hone.agents import AgentRun, BashAgent
from hone.environment import extract_patch
from hone.grading import GraderError
from hone.outcomes import Outcome
from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.errors import PolicyError
from hone.policy.reply import CallKind, Chat, Reply
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.sandbox import Sandbox, SandboxLost
from hone.tasks.workspace import prepare
from hone.types import Call, Message, Task, TokenTree, Trajectory, Verdict
from tests.rollout.real import SCAFFOLD, Hanging, gold, open_context, script, tasks

pytestmark = pytest.mark.sandbox


def episode(task: Task, context: RolloutContext) -> Episode:
    workspace = prepare(task, context.workspaces)
    return Episode(task=task, rollout_id="r", group_id="g", workspace=workspace, seed=1)


def roll_out(root: Path, agent: Any, *, context: dict[str, Any] | None = None, **options: Any) -> Trajectory:
    """One rollout of the first task, with parts of the context replaced."""

    async def run() -> Trajectory:
        async with open_context(root, agent, **options) as real:
            changed = dataclasses.replace(real, **(context or {}))
            trajectory = await run_episode(episode(tasks(1)[0], changed), changed)
            await assert_all_gone(changed)
            return trajectory

    return asyncio.run(run())


async def assert_all_gone(context: RolloutContext) -> None:
    for sandbox in context.provider.started:  # type: ignore[attr-defined]
        with pytest.raises(SandboxLost):
            await sandbox.exec("true")


class Says:
    """A conversation that says what it is given, and raises what is an exception."""

    def __init__(self, *replies: str | Exception) -> None:
        self.tree = TokenTree()
        self.forks = Counter[str]()
        self.calls: list[Call] = []
        self.closed = False
        self._replies = iter(replies)

    async def reply(self, messages: list[Message], **options: object) -> Reply:
        reply = next(self._replies, None)
        if reply is None:
            await asyncio.Event().wait()
        if isinstance(reply, Exception):
            raise reply
        assert reply is not None
        self.calls.append(
            Call(
                index=len(self.calls),
                node=None,
                purpose=CallKind.MAIN,
                fork=None,
                prompt_tokens=len(messages),
                sampled_tokens=7,
                seconds=0.5,
            )
        )
        return Reply(content=SCAFFOLD.reply(reply), node=None)

    async def close(self) -> None:
        self.closed = True


def scripted_chat(*replies: str | Exception) -> dict[str, Any]:
    return {"new_chat": lambda rollout_id, seed: Says(*replies)}


def test_correct_fix_is_resolved_and_every_stage_is_timed(tmp_path: Path):
    done = roll_out(tmp_path, script(lambda task, _: [gold(task)]))
    assert (done.outcome, done.reward, done.error) == (Outcome.RESOLVED, 1.0, None)
    assert done.verdict is not None
    assert done.verdict.resolved
    assert "diff --git" in done.patch
    assert set(done.timings) == {"queue", "start", "agent", "exec", "patch", "close", "grade"}
    assert done.timings["agent"] >= done.timings["exec"] > 0
    assert len(done.turns) == 2


def test_wrong_fix_is_unresolved(tmp_path: Path):
    done = roll_out(tmp_path, script(lambda task, _: ["echo 'a note' > notes.txt"]))
    assert (done.outcome, done.reward) == (Outcome.UNRESOLVED, -1.0)


def test_empty_submission_is_no_patch_and_is_not_graded(tmp_path: Path):
    done = roll_out(tmp_path, script(lambda task, _: []))
    assert (done.outcome, done.reward, done.verdict) == (Outcome.NO_PATCH, -1.0, None)


def test_turn_limit_stays_the_outcome_and_its_fix_is_rewarded(tmp_path: Path):
    done = roll_out(tmp_path, script(lambda task, _: [gold(task), *["true"] * 20]))
    assert (done.outcome, done.reward) == (Outcome.TURN_LIMIT, 1.0)


def test_patch_at_the_time_limit_is_graded(tmp_path: Path):
    agent = script(lambda task, _: [gold(task), "sleep 1000"])
    done = roll_out(tmp_path, agent, time_limit_s=10.0)  # what the first command never takes
    assert (done.outcome, done.reward, len(done.turns)) == (Outcome.TIME_LIMIT, 1.0, 1)


def test_patch_at_the_context_limit_is_graded(tmp_path: Path):
    chat = scripted_chat(gold(tasks(1)[0]), ContextOverflow(9, 8))
    done = roll_out(tmp_path, BashAgent(SCAFFOLD), context=chat)
    assert (done.outcome, done.reward) == (Outcome.CONTEXT_LIMIT, 1.0)
    assert len(done.turns) == 1
    (call,) = done.calls  # what was answered is in the record, for cost and for people
    assert (call.purpose, call.sampled_tokens) == ("main", 7)


@pytest.mark.full
@pytest.mark.parametrize("ending", [EngineError("down"), None])
def test_failing_or_silent_engine_is_engine_error(tmp_path: Path, ending: Exception | None):
    chat = scripted_chat("true", *([ending] if ending else []))
    # the limit leaves time for the command, and is over before the silence is
    done = roll_out(tmp_path, BashAgent(SCAFFOLD), context=chat, reply_timeout_s=11.0, time_limit_s=10.0)
    assert (done.outcome, done.reward) == (Outcome.ENGINE_ERROR, None)
    assert done.error == "down" if ending else "no reply within 11 s" in str(done.error)
    assert len(done.turns) == 1


def test_reply_that_breaks_the_chat_template_is_a_policy_fault(tmp_path: Path):
    chat = scripted_chat(gold(tasks(1)[0]), PolicyError("the template takes one call a reply"))
    done = roll_out(tmp_path, BashAgent(SCAFFOLD), context=chat)
    assert (done.outcome, done.reward) == (Outcome.FORMAT_LIMIT, -1.0)
    assert done.notes["refused"] == "the template takes one call a reply"


def test_template_error_before_the_first_reply_stops_the_run(tmp_path: Path):
    with pytest.raises(PolicyError, match="no place for tools"):
        roll_out(tmp_path, BashAgent(SCAFFOLD), context=scripted_chat(PolicyError("no place for tools")))


def test_time_limit_fires_after_a_reply_and_not_during_it(tmp_path: Path):
    class Slow(Says):
        async def reply(self, messages: list[Message], **options: object) -> Reply:
            reply = await super().reply(messages)
            limit_passed = asyncio.get_running_loop().create_future()
            asyncio.get_running_loop().call_later(3.5, limit_passed.set_result, None)
            await limit_passed
            return reply

    chat = {"new_chat": lambda rollout_id, seed: Slow("true")}
    # long enough that the reply has begun, however the machine stalls
    done = roll_out(tmp_path, BashAgent(SCAFFOLD), context=chat, time_limit_s=3.0)
    assert (done.outcome, len(done.turns)) == (Outcome.TIME_LIMIT, 0)
    assert done.messages[-1]["role"] == "assistant"  # what was sampled is kept


class Breaking:
    """An agent in whose hands the sandbox dies, after `commands` commands."""

    def __init__(self, commands: int) -> None:
        self._commands = commands

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        for _ in range(self._commands):
            await sandbox.exec("true")
        await sandbox.close()
        if self._commands:
            await sandbox.exec("true")
        else:
            await sandbox.read("x")


def test_sandbox_lost_after_a_command_is_a_policy_fault(tmp_path: Path):
    done = roll_out(tmp_path, Breaking(1))
    assert (done.outcome, done.reward) == (Outcome.BROKE_SANDBOX, -1.0)


def test_sandbox_lost_with_its_provider_is_infrastructure_fault(tmp_path: Path):
    provider_down = roll_out(tmp_path, Breaking(1), fails=lambda i: i > 0)
    assert (provider_down.outcome, provider_down.reward) == (Outcome.SANDBOX_ERROR, None)
    assert "injected" in str(provider_down.error)
    assert roll_out(tmp_path, Breaking(0)).outcome is Outcome.SANDBOX_ERROR


def test_sandbox_that_does_not_start_is_sandbox_error(tmp_path: Path):
    done = roll_out(tmp_path, script(lambda task, _: []), fails=lambda i: True)
    assert (done.outcome, done.reward, done.error) == (Outcome.SANDBOX_ERROR, None, "injected")


class Finds:
    """A grader with a fixed finding."""

    def __init__(self, finding: Verdict | Exception) -> None:
        self._finding = finding

    async def grade(self, task: Task, patch: str) -> Verdict:
        if isinstance(self._finding, Exception):
            raise self._finding
        return self._finding


def test_missing_verdict_is_grader_error(tmp_path: Path):
    done = roll_out(
        tmp_path, script(lambda task, _: [gold(task)]), context={"grader": Finds(GraderError("no pytest"))}
    )
    assert (done.outcome, done.reward, done.error) == (Outcome.GRADER_ERROR, None, "no pytest")


def test_tampering_outweighs_a_passing_verdict(tmp_path: Path):
    verdict = Verdict(resolved=True, tests={}, score=1.0, tampered="wrote to the report")
    done = roll_out(tmp_path, script(lambda task, _: [gold(task)]), context={"grader": Finds(verdict)})
    assert (done.outcome, done.reward) == (Outcome.TAMPERED, -1.0)


def test_cancellation_closes_sandbox_and_chat_and_keeps_record(tmp_path: Path):
    @asynccontextmanager
    async def under_way(context: RolloutContext) -> AsyncGenerator[tuple[Episode, asyncio.Task[Trajectory]]]:
        rollout = episode(tasks(1)[0], context)
        yield rollout, asyncio.create_task(run_episode(rollout, context))

    async def run() -> None:
        agent, chat = Hanging(), Says()
        async with open_context(tmp_path, agent) as real:
            context = dataclasses.replace(real, new_chat=lambda rollout_id, seed: chat)
            async with under_way(context) as (rollout, job):
                await agent.arrived.wait()
                job.cancel()
                with pytest.raises(asyncio.CancelledError):
                    await job
            await assert_all_gone(context)
            assert chat.closed
            record = rollout.trajectory(Outcome.CANCELLED, context, "shut down")
            assert (record.outcome, record.reward) == (Outcome.CANCELLED, None)
            assert record.timings["exec"] > 0

    asyncio.run(run())


@pytest.mark.parametrize(
    ("replies", "outcome"), [(0, Outcome.SANDBOX_ERROR), (1, Outcome.CRASHED)], ids=["start", "reply"]
)
def test_unexpected_error_ends_the_rollout_with_its_traceback(tmp_path: Path, replies: int, outcome: Outcome):
    class Defective:
        async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
            for _ in range(replies):
                await chat.reply([])
            raise ZeroDivisionError("nothing expects this")

    done = roll_out(tmp_path, Defective(), context=scripted_chat("ls"))
    assert (done.outcome, done.error) == (outcome, "ZeroDivisionError: nothing expects this")
    assert "in run\n" in done.notes["traceback"]


def test_unexpected_error_of_the_grader_is_not_excused(tmp_path: Path):
    class Defective:
        async def grade(self, task: Task, patch: str) -> Verdict:
            raise UnicodeDecodeError("utf-8", b"\xff", 0, 1, "of the patch")

    done = roll_out(tmp_path, script(lambda task, _: [gold(task)]), context={"grader": Defective()})
    assert (done.outcome, done.reward) == (Outcome.CRASHED, -1.0)


def test_git_of_the_agent_that_gives_no_utf8_breaks_the_sandbox(tmp_path: Path):
    async def extract(sandbox: Sandbox, task: Task, **_: object) -> str:
        return await extract_patch(GivesBytes(sandbox), task)

    done = roll_out(tmp_path, script(lambda task, _: [gold(task)]), context={"extract": extract})
    assert (done.outcome, done.reward) == (Outcome.BROKE_SANDBOX, -1.0)
    assert "not UTF-8" in (done.error or "")


class GivesBytes:
    """A sandbox whose commands write a byte that UTF-8 has not."""

    def __init__(self, inner: Sandbox) -> None:
        self._inner = inner

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    async def exec(self, command: Any, **options: Any) -> Any:
        done = await self._inner.exec(command, **options)
        return dataclasses.replace(done, stdout=b"\xff\n", stdout_bytes=2)


@pytest.mark.full
def test_suspicious_commands_are_recorded_as_signals(tmp_path: Path) -> None:
    looks = ["git log --all -S return", "pip download x"]
    honest = roll_out(tmp_path / "honest", script(lambda task, _: ["ls", gold(task)]))
    curious = roll_out(tmp_path / "curious", script(lambda task, _: [*looks, gold(task)]))
    assert honest.signals == ()
    assert [signal.kind for signal in curious.signals] == ["git_history", "package_download"]
    assert honest.outcome is curious.outcome is Outcome.RESOLVED
