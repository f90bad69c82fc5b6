"""The agent contract: a scaffold that acts on replies until it submits or reaches a limit; and its loop."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hone.outcomes import Outcome
from hone.policy.reply import Chat, Reply, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, Turn
from hone.utils.clock import monotonic


class AgentFailed(Exception):
    """The agent could not work with any policy: an infrastructure fault."""


@dataclass(slots=True, kw_only=True)
class AgentRun:
    """The record of one agent run, filled turn by turn: a cancelled or crashed run keeps its turns."""

    rollout_id: str = ""  # set by the episode; scripted agents seed their choices with it
    turns: list[Turn] = field(default_factory=list[Turn])
    messages: list[Message] = field(default_factory=list[Message])
    tools: Sequence[ToolSpec] = ()  # offered to the policy with the messages
    submitted: bool = False
    ending: Outcome | None = None  # the limit reached; None after a submission, which the grader judges
    waited_s: float = 0.0  # for a parked sandbox, which no limit counts
    notes: dict[str, Any] = field(default_factory=dict[str, Any])  # copied into the trajectory's metadata
    observers: list[Callable[[Turn], Awaitable[None]]] = field(
        default_factory=list[Callable[[Turn], Awaitable[None]]]
    )  # awaited after each turn, while the sandbox is as that turn left it

    def seconds_since(self, started: float) -> float:
        """Return the seconds of `hone.utils.clock.monotonic` since `started`, before any wait of the run."""
        return monotonic() - started - self.waited_s

    async def record(self, turn: Turn) -> None:
        """Append a turn and await the observers."""
        self.turns.append(turn)
        for observer in self.observers:
            await observer(turn)


class Agent(Protocol):
    """Stateless: one agent object serves many rollouts at once."""

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Work on `task` in `sandbox` and record into `run`.

        Raises SandboxLost, EngineError, ContextOverflow, AgentFailed: the episode turns them into outcomes.
        """
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of one rollout, checked before each reply; 0: none."""

    turns: int = 0
    tokens: int = 0  # sampled
    seconds: float = 0.0
    format_errors: int = 3  # consecutive replies without a valid action

    def reached(self, *, turns: int, tokens: int, seconds: float, format_errors: int) -> Outcome | None:
        """Return the first limit that these counts reach; None: the rollout continues."""
        counts = (
            (self.format_errors, format_errors, Outcome.FORMAT_LIMIT),
            (self.turns, turns, Outcome.TURN_LIMIT),
            (self.tokens, tokens, Outcome.TOKEN_LIMIT),
            (self.seconds, seconds, Outcome.TIME_LIMIT),
        )
        return next((outcome for limit, count, outcome in counts if 0 < limit <= count), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """The result of acting on one reply."""

    action: str | None = None  # None: the reply had no valid action
    exit_code: int | None = None
    observation: str = ""
    submitted: bool = False

    def turn(self, run: AgentRun, reply: Reply, seconds: float) -> Turn:
        """Return the next turn of `run`, which took `seconds`."""
        return Turn(
            index=len(run.turns),
            node=reply.node,
            reply=reply.content,
            action=self.action,
            exit_code=self.exit_code,
            observation=self.observation,
            seconds=seconds,
        )


async def run_loop(
    chat: Chat, run: AgentRun, limits: Limits, act: Callable[[Reply], Awaitable[Step]]
) -> None:
    """Ask `chat` with the messages and tools of `run` until a step submits or a limit is reached.

    Args:
        act: acts on a reply and appends the reply and its answers to `run.messages`.
    Raises:
        Exception: whatever the chat, `act` and the observers of `run` raise; `run` keeps the turns so far.
    """
    started = monotonic()
    tokens = format_errors = 0
    while not run.submitted:
        run.ending = limits.reached(
            turns=len(run.turns),
            tokens=tokens,
            seconds=run.seconds_since(started),
            format_errors=format_errors,
        )
        if run.ending is not None:
            return
        turn_started = monotonic()
        reply = await chat.reply(list(run.messages), tools=run.tools or None)
        tokens += reply.sampled_tokens
        step = await act(reply)
        format_errors = format_errors + 1 if step.action is None else 0
        run.submitted = step.submitted
        await run.record(step.turn(run, reply, monotonic() - turn_started))
