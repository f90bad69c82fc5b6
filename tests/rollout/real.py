"""A real rollout context for tests, and the faults that they inject."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable, Iterable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from hone.agents import AgentRun, ScriptedAgent, load_scaffold
from hone.agents.scripted import oracle
from hone.grading import Grader, GradingSettings
from hone.policy.reply import Chat
from hone.rollout.episode import RolloutContext
from hone.rollout.parking import open_parking
from hone.rollout.settings import RolloutSettings
from hone.sandbox import Health, Provider, ProviderUnavailable, Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.curriculum import generate
from hone.tasks.settings import TasksSettings
from hone.types import Task

SCAFFOLD = load_scaffold("tiny")


@functools.cache
def tasks(number: int) -> tuple[Task, ...]:
    return tuple(generate(TasksSettings(train=number, test=0, unseen=0)).train)


def script(commands: Callable[[Task, str], Iterable[str]]) -> ScriptedAgent:
    return ScriptedAgent(SCAFFOLD, commands)


def gold(task: Task) -> str:
    """The command that fixes a task."""
    (command,) = oracle(task, "")
    return command


class FaultyProvider:
    """A real provider whose i-th start fails where `fails(i)` says so; remembers what it started."""

    def __init__(self, provider: Provider, fails: Callable[[int], bool] = lambda i: False) -> None:
        self._provider = provider
        self._fails = fails
        self._asked = 0
        self.started: list[Sandbox] = []

    async def start(self, spec: SandboxSpec) -> Sandbox:
        self._asked += 1
        if self._fails(self._asked - 1):
            raise ProviderUnavailable("injected", retryable=True)
        sandbox = await self._provider.start(spec)
        self.started.append(sandbox)
        return sandbox

    async def health(self) -> Health:
        return await self._provider.health()

    async def reconcile(self) -> int:
        return await self._provider.reconcile()

    async def __aenter__(self) -> FaultyProvider:
        return self

    async def __aexit__(self, *exc: object) -> None:
        return None


class Hanging:
    """An agent that runs some commands and then never ends; `waiting` counts those that got there."""

    def __init__(self, commands: Callable[[Task], Iterable[str]] = lambda task: ["true"]) -> None:
        self._commands = commands
        self.waiting = 0
        self.arrived = asyncio.Event()

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        for command in self._commands(task):
            await sandbox.exec(command)
        self.waiting += 1
        self.arrived.set()
        await asyncio.Event().wait()


@asynccontextmanager
async def open_context(
    root: Path,
    agent: Any,
    *,
    fails: Callable[[int], bool] = lambda i: False,
    **settings: Any,
) -> AsyncGenerator[RolloutContext]:
    """Real sandboxes, real grading; everything below `root`."""
    own = SandboxSettings(state_dir=root / "state")
    chosen = RolloutSettings(**{"group_size": 2, "retry_delay_s": 0.0, **settings})
    async with make_provider(own) as real, open_parking(chosen, real, own.state_dir) as parking:
        provider = FaultyProvider(real, fails)
        yield RolloutContext(
            provider=provider,
            spec=SandboxSpec(),
            agent=agent,
            grader=Grader(real, GradingSettings(), cache=root / "workspaces"),
            new_chat=None,
            workspaces=root / "workspaces",
            settings=chosen,
            parking=parking,
        )
