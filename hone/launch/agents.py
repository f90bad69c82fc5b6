"""The agent of a run, with what it needs around it while the run lasts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.agents import Agent, AgentSettings, make_agent
from hone.sandbox import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """An agent, and what every sandbox that it works in must hold."""

    agent: Agent
    spec: SandboxSpec


@asynccontextmanager
async def open_agent(settings: AgentSettings, spec: SandboxSpec, *, cache: Path) -> AsyncGenerator[Equipped]:
    """The agent that `settings` describe; `cache` keeps what it prepares once. Raises ScaffoldError."""
    yield Equipped(agent=make_agent(settings), spec=spec)
