"""One rollout, from a leased sandbox to a graded trajectory.

    lease sandbox -> agent loop -> patch -> close sandbox -> grade in a fresh one -> Trajectory

With `RolloutContext.parking`, the sandbox of a rollout that waits long for a reply is given back meanwhile.

Invariant: every wait is bounded and every exit is an `Outcome`; a failure that the policy can cause is never
counted as an infrastructure fault, nor the reverse.
"""

from __future__ import annotations

import asyncio
import time
import traceback
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from hone.agents.contract import Agent, AgentFailed, AgentRun
from hone.environment import BrokenTree, extract_patch, start_agent_sandbox
from hone.grading import GraderError, GradingSettings
from hone.grading.integrity import scan_trajectory
from hone.outcomes import OUTCOME_RULES, Outcome
from hone.policy.engine import ContextOverflow, EngineError
from hone.policy.errors import PolicyError
from hone.rollout.busy import BusyShares
from hone.rollout.errors import RolloutError
from hone.rollout.metering import Conversation, MeteredChat, MeteredSandbox, NoChat
from hone.rollout.parking import Parking, Place
from hone.rollout.rewards import is_infrastructure_fault, reward_of
from hone.rollout.sandbox import CLOSE_TIMEOUT_S, RolloutSandbox, close_sandbox
from hone.rollout.scoring import Scorers, Scoring, open_scoring
from hone.rollout.settings import RolloutSettings
from hone.rollout.time_limit import TimeLimit
from hone.sandbox.contract import (
    Provider,
    ProviderUnavailable,
    Sandbox,
    SandboxError,
    SandboxLost,
    SandboxSpec,
)
from hone.types import Call, Sampler, Signal, Task, TokenTree, Trajectory, Verdict
from hone.utils.errors import HoneError

PROBE_TIMEOUT_S = 30.0
# Providers and graders bound their own work; this limit only stops a defect in one from blocking a run.
BACKSTOP_S = 3600.0
_TRACEBACK = 16_000  # characters kept of an unexpected error's
_FEW_COMMANDS = 40_000  # characters of all commands; scanning more would hold the event loop


class Grades(Protocol):
    """The interface of the grader in `hone.grading`."""

    async def grade(self, task: Task, patch: str) -> Verdict:
        """Return the verdict on a patch. Raises GraderError when there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutContext:
    """Components and settings that all rollouts of a run share."""

    provider: Provider
    spec: SandboxSpec  # of every sandbox; image, workdir and layer come from the task
    agent: Agent
    grader: Grades
    new_chat: Callable[[str, int], Conversation] | None  # (rollout id, seed); None: scripted agents only
    workspaces: Path  # cache of the tasks' repositories
    settings: RolloutSettings
    sampler: Sampler = field(default_factory=Sampler)
    grading: GradingSettings = field(default_factory=GradingSettings)
    extract: Callable[..., Awaitable[str]] = extract_patch  # reads the patch in the agent's sandbox
    scorers: Scorers | None = None  # None: single turns are not scored
    busy: BusyShares = field(default_factory=BusyShares)
    parking: Parking | None = None  # None: each rollout keeps its sandbox


@dataclass(slots=True, kw_only=True)
class Episode:
    """A running rollout; its fields are filled in on the way, so that a cancelled one can be recorded."""

    task: Task
    rollout_id: str
    group_id: str
    workspace: Path
    seed: int
    queued_at: float = field(default_factory=time.monotonic)
    run: AgentRun = field(init=False)
    tree: TokenTree = field(default_factory=TokenTree)
    patch: str = ""
    verdict: Verdict | None = None
    timings: dict[str, float] = field(default_factory=dict[str, float])
    started_at: float | None = None
    calls: tuple[Call, ...] = ()
    forks: Mapping[str, int] = field(default_factory=dict[str, int])
    enforced_limits: Mapping[str, str] = field(default_factory=dict[str, str])
    signals: tuple[Signal, ...] = ()

    def __post_init__(self) -> None:
        self.run = AgentRun(rollout_id=self.rollout_id)

    def trajectory(self, outcome: Outcome, context: RolloutContext, error: str | None = None) -> Trajectory:
        """Return the record of the rollout so far, ended with `outcome`."""
        return Trajectory(
            task_id=self.task.id,
            rollout_id=self.rollout_id,
            group_id=self.group_id,
            tree=self.tree,
            turns=tuple(self.run.turns),
            messages=tuple(self.run.messages),
            patch=self.patch,
            outcome=outcome,
            reward=reward_of(outcome, self.verdict, context.settings.rewards),
            verdict=self.verdict,
            error=error,
            timings=dict(self.timings),
            sampler=context.sampler,
            seed=self.seed,
            started_at=self.started_at,
            tools=tuple(self.run.tools),
            calls=self.calls,
            forks=self.forks,
            signals=self.signals,
            enforced_limits=self.enforced_limits,
            notes=dict(self.run.notes),
        )


class _Ended(Exception):
    """The rollout is over before its patch could be graded."""

    def __init__(self, outcome: Outcome, error: object) -> None:
        super().__init__(str(error))
        self.outcome = outcome


async def run_episode(episode: Episode, context: RolloutContext) -> Trajectory:
    """Run one rollout and return its trajectory, whatever its outcome.

    The time limit starts when the sandbox is leased. The patch of a rollout that hit a limit is graded.
    Failures of the policy, sandbox, engine or grader become outcomes, not exceptions, and so does an error
    that nothing expects; its traceback is in the notes. A cancellation is raised after the sandbox is closed;
    `episode.trajectory(Outcome.CANCELLED, ...)` then returns the record. Raises HoneError when the run is
    configured wrongly.
    """
    try:
        return await _scored(episode, context)
    except HoneError:
        raise
    except Exception as error:  # what an agent or its model wrote may reach a defect of any part
        episode.run.notes["traceback"] = "".join(traceback.format_exception(error))[-_TRACEBACK:]
        acted = bool(episode.calls or episode.run.turns)
        outcome = Outcome.CRASHED if acted else Outcome.SANDBOX_ERROR
        return episode.trajectory(outcome, context, f"{type(error).__name__}: {error}")


async def _record(
    episode: Episode, context: RolloutContext, outcome: Outcome, error: str | None = None
) -> Trajectory:
    turns = episode.run.turns
    if sum(len(turn.action or "") for turn in turns) <= _FEW_COMMANDS:
        episode.signals = scan_trajectory(turns)
    else:
        episode.signals = await asyncio.to_thread(scan_trajectory, turns)
    return episode.trajectory(outcome, context, error)


async def _scored(episode: Episode, context: RolloutContext) -> Trajectory:
    if context.scorers is None:
        return await _attempt(episode, context, None)
    run, grade = episode.run, context.grader.grade
    async with open_scoring(context.scorers, episode.task, run, episode.seed, grade) as scoring:
        return await scoring.close(await _attempt(episode, context, scoring))


async def _attempt(episode: Episode, context: RolloutContext, scoring: Scoring | None) -> Trajectory:
    place = Place(context.parking, episode.queued_at)
    try:
        async with _leased(episode, context, place) as sandbox:
            if scoring is not None:
                scoring.watch(lambda: _read_patch(episode, context, sandbox))
            deadline = asyncio.get_running_loop().time() + context.settings.time_limit_s
            limit = await _work(episode, context, sandbox, deadline)
            episode.patch = await _take_patch(episode, context, sandbox)
        outcome = await _grade(episode, context, limit)  # a patch was read in a sandbox: the place is held
    except _Ended as ended:
        return await _record(episode, context, ended.outcome, str(ended))
    finally:
        place.release()
    return await _record(episode, context, outcome)


async def _read_patch(episode: Episode, context: RolloutContext, sandbox: MeteredSandbox) -> str:
    """Return the patch so far; the agent is still at work."""
    async with sandbox.inner.use() as inner:
        return await context.extract(inner, episode.task, intact=True)


async def run_demonstration(episode: Episode, context: RolloutContext) -> None:
    """Run the agent of a rollout without grading; `episode.run` holds its messages and turns.

    Raises RolloutError unless the agent submitted.
    """
    place = Place(context.parking, episode.queued_at)
    try:
        async with _leased(episode, context, place) as sandbox:
            deadline = asyncio.get_running_loop().time() + context.settings.time_limit_s
            ended = await _work(episode, context, sandbox, deadline)
    except _Ended as error:
        raise RolloutError(f"the demonstration of {episode.task.id} failed: {error}") from error
    finally:
        place.release()
    if ended is not None:
        raise RolloutError(f"the demonstration of {episode.task.id} ended with {ended} instead of submitting")


async def retry_infrastructure_faults(
    run: Callable[[], Awaitable[Trajectory]], settings: RolloutSettings
) -> Trajectory:
    """Return the first trajectory of `run` without an infrastructure fault, or that of the last attempt."""
    delays = settings.retry_delays()
    trajectory = await run()
    for _ in range(settings.attempts - 1):
        if not is_infrastructure_fault(trajectory.outcome):
            break
        await asyncio.sleep(next(delays))
        trajectory = await run()
    return trajectory


@asynccontextmanager
async def _leased(episode: Episode, context: RolloutContext, place: Place) -> AsyncGenerator[MeteredSandbox]:
    """Yield the rollout's sandbox; afterwards it is closed, and the caller releases `place`."""
    try:
        await place.take()
        episode.timings["queue"] = time.monotonic() - episode.queued_at
        with _timed(episode, "start"), context.busy.sandbox.use():
            sandbox = await _start(episode, context)
    except SandboxError as error:
        raise _Ended(Outcome.SANDBOX_ERROR, error) from error
    episode.enforced_limits = sandbox.enforced
    inner = RolloutSandbox(
        sandbox,
        place,
        provider=context.provider,
        parking=context.parking,
        run=episode.run,
        timings=episode.timings,
        busy=context.busy,
    )
    try:
        yield MeteredSandbox(inner, episode.timings, context.busy.sandbox)
    finally:
        with _timed(episode, "close"):
            await inner.close()


async def _start(episode: Episode, context: RolloutContext) -> Sandbox:
    try:
        async with asyncio.timeout(BACKSTOP_S):
            return await start_agent_sandbox(
                episode.task, episode.workspace, context.spec, context.provider, context.grading
            )
    except TimeoutError:
        raise SandboxError(f"no sandbox started within {BACKSTOP_S:.0f} s") from None


async def _work(
    episode: Episode, context: RolloutContext, sandbox: MeteredSandbox, deadline: float
) -> Outcome | None:
    """Run the agent; return the limit that stopped it, or None when it submitted."""
    conversation = context.new_chat(episode.rollout_id, episode.seed) if context.new_chat else NoChat()
    timeout = asyncio.timeout_at(deadline)
    inner, time_limit = sandbox.inner, TimeLimit(timeout)
    chat = MeteredChat(
        conversation,
        episode.timings,
        context.settings.reply_timeout_s,
        time_limit,
        context.busy.engine,
        inner,
    )
    episode.tree = conversation.tree
    episode.started_at = time.time()
    try:
        with _timed(episode, "agent"):
            async with timeout:
                inner.time_limit = time_limit
                await context.agent.run(episode.task, sandbox, chat, episode.run)
    except TimeoutError:
        if not timeout.expired():
            raise
        return Outcome.TIME_LIMIT
    except ContextOverflow:
        return Outcome.CONTEXT_LIMIT
    except EngineError as error:
        raise _Ended(Outcome.ENGINE_ERROR, error) from error
    except PolicyError as error:
        if not conversation.calls:  # before the first reply: the run is configured wrongly
            raise
        episode.run.notes["refused"] = str(error)
        return Outcome.FORMAT_LIMIT  # a reply that the chat template cannot carry on
    except AgentFailed as error:
        raise _Ended(Outcome.SANDBOX_ERROR, error) from error
    except SandboxError as error:
        raise await _lost(episode, context, sandbox, error) from error
    finally:
        inner.time_limit = None
        await _close_chat(episode, conversation)
    return episode.run.ending


async def _close_chat(episode: Episode, conversation: Conversation) -> None:
    episode.forks = {str(reason): count for reason, count in conversation.forks.items()}
    episode.calls = tuple(conversation.calls)
    try:
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await conversation.close()
    except (EngineError, TimeoutError) as error:  # the next reply reports an engine that is down
        episode.run.notes["hang_up_error"] = f"{type(error).__name__}: {error}"


async def _take_patch(episode: Episode, context: RolloutContext, sandbox: MeteredSandbox) -> str:
    """Return the patch. The agent's processes still run, so a failure is usually the policy's fault."""
    try:
        async with sandbox.inner.use() as inner:
            with _timed(episode, "patch"):
                async with asyncio.timeout(BACKSTOP_S):
                    return await context.extract(inner, episode.task)
    except BrokenTree as error:
        raise _Ended(Outcome.BROKE_SANDBOX, error) from error
    except TimeoutError:
        slow = SandboxLost(f"the patch could not be read within {BACKSTOP_S:.0f} s")
        raise await _lost(episode, context, sandbox, slow) from None
    except SandboxError as error:
        raise await _lost(episode, context, sandbox, error) from error


async def _lost(
    episode: Episode, context: RolloutContext, sandbox: MeteredSandbox, error: SandboxError
) -> _Ended:
    """Return the outcome of a lost sandbox: a fault of the policy or of the infrastructure.

    A leased sandbox works. After the agent has run a command in it, its loss is the policy's fault, unless
    the provider cannot start another working sandbox either.
    """
    if isinstance(error, ProviderUnavailable) or not sandbox.used:
        return _Ended(Outcome.SANDBOX_ERROR, error)
    try:
        probe = await _start(episode, context)
        try:
            alive = await probe.exec("true", timeout_s=PROBE_TIMEOUT_S)
        finally:
            await close_sandbox(probe, episode.run)
    except SandboxError as fault:
        return _Ended(Outcome.SANDBOX_ERROR, f"{error}; and a new sandbox: {fault}")
    if alive.exit_code != 0:
        return _Ended(Outcome.SANDBOX_ERROR, f"{error}; and a new sandbox cannot run `true`")
    return _Ended(Outcome.BROKE_SANDBOX, error)


async def _grade(episode: Episode, context: RolloutContext, limit: Outcome | None) -> Outcome:
    """Return the outcome of a rollout with a patch; a limit stays the outcome whatever the verdict says."""
    if not episode.patch.strip():
        return limit or Outcome.NO_PATCH
    if limit is not None and not OUTCOME_RULES[limit].graded:
        return limit
    try:
        with _timed(episode, "grade"), context.busy.sandbox.use():
            async with asyncio.timeout(BACKSTOP_S):
                verdict = await context.grader.grade(episode.task, episode.patch)
    except TimeoutError:
        raise _Ended(Outcome.GRADER_ERROR, f"no verdict within {BACKSTOP_S:.0f} s") from None
    except (GraderError, SandboxError) as error:
        raise _Ended(Outcome.GRADER_ERROR, error) from error
    episode.verdict = verdict
    if verdict.tampered is not None:
        return Outcome.TAMPERED
    return limit or (Outcome.RESOLVED if verdict.resolved else Outcome.UNRESOLVED)


@contextmanager
def _timed(episode: Episode, stage: str) -> Generator[None]:
    started = time.monotonic()
    try:
        yield
    finally:
        episode.timings[stage] = time.monotonic() - started
