"""The agent of a run, with what it needs around it while the run lasts."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.agents import Agent, AgentSettings, DebuggerAgent, ScaffoldError, make_agent
from hone.agents.blackbox import BlackboxAgent
from hone.agents.context import ManagedAgent
from hone.sandbox import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Equipped:
    """An agent, and what every sandbox that it works in must hold."""

    agent: Agent
    spec: SandboxSpec


@asynccontextmanager
async def open_agent(settings: AgentSettings, spec: SandboxSpec, *, cache: Path) -> AsyncGenerator[Equipped]:
    """The agent that `settings` describe; `cache` keeps what it prepares once. Raises ScaffoldError."""
    agent = _mini_swe_agent(settings, cache) if settings.kind == "mini-swe-agent" else make_agent(settings)
    async with AsyncExitStack() as stack:
        if isinstance(agent, (BlackboxAgent, DebuggerAgent)):
            spec = await stack.enter_async_context(agent.open(spec))
        yield Equipped(agent=ManagedAgent(agent, settings.context), spec=spec)


def _mini_swe_agent(settings: AgentSettings, cache: Path) -> Agent:
    try:
        from hone.integrations.mini_swe_agent.agent import make_mini_swe_agent
    except ModuleNotFoundError as error:
        raise ScaffoldError(
            "agent.kind = \"mini-swe-agent\" needs that package: pip install 'hone[mini-swe-agent]'"
        ) from error
    return make_mini_swe_agent(settings, trajectories=cache / "mini-swe-agent")
