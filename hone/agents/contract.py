"""The agent seam: a scaffold that turns replies into actions until it submits or a limit is hit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from hone.outcomes import Outcome
from hone.policy.reply import Chat, ToolSpec
from hone.sandbox.contract import Sandbox
from hone.types import Message, Task, Turn


class AgentFailed(Exception):
    """The agent itself could not work, whatever the policy would have said: an infrastructure fault."""


@dataclass(slots=True, kw_only=True)
class AgentRun:
    """What an agent leaves behind; filled in as it goes, so that a cancelled or crashed run keeps its turns.

    `ending` is None when the agent submitted (the grader decides) and the limit it hit otherwise.
    `observers` are awaited after each turn, while the sandbox stands as that turn left it. `notes` goes into
    the trajectory's metadata.
    """

    rollout_id: str = ""  # set by the episode; scripted agents draw their choices from it
    turns: list[Turn] = field(default_factory=list[Turn])
    messages: list[Message] = field(default_factory=list[Message])
    tools: Sequence[ToolSpec] = ()  # that the policy was offered beside the messages
    submitted: bool = False
    ending: Outcome | None = None
    notes: dict[str, Any] = field(default_factory=dict[str, Any])
    observers: list[Callable[[Turn], Awaitable[None]]] = field(
        default_factory=list[Callable[[Turn], Awaitable[None]]]
    )

    async def record(self, turn: Turn) -> None:
        """Add a turn, and let the observers see it before the agent goes on."""
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
