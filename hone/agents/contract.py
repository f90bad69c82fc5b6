"""The agent contract: a scaffold that acts on replies until it submits or reaches a limit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hone.outcomes import Outcome
from hone.policy.reply import Chat, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, Turn


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
    notes: dict[str, Any] = field(default_factory=dict[str, Any])  # copied into the trajectory's metadata
    observers: list[Callable[[Turn], Awaitable[None]]] = field(
        default_factory=list[Callable[[Turn], Awaitable[None]]]
    )  # awaited after each turn, while the sandbox is as that turn left it

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
