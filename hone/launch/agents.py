"""Opens the agent of a run."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.agents import Agent, AgentSettings, DebuggerAgent, ScaffoldError, make_agent
from hone.agents.blackbox import BlackboxAgent
from hone.agents.context import ManagedAgent
from hone.agents.settings import BashAgentSettings, ContextSettings, PolicyAgentSettings
from hone.sandbox import SandboxSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedAgent:
    """An agent and the spec of its sandboxes."""

    agent: Agent
    spec: SandboxSpec


@asynccontextmanager
async def open_agent(
    settings: AgentSettings, spec: SandboxSpec, *, cache: Path
) -> AsyncGenerator[PreparedAgent]:
    """Open the agent of `settings`; `cache` stores its prepared tools. Raises ScaffoldError."""
    if isinstance(settings, BashAgentSettings) and settings.kind == "mini-swe-agent":
        agent = _mini_swe_agent(settings, cache)
    else:
        agent = make_agent(settings)
    context = settings.context if isinstance(settings, PolicyAgentSettings) else ContextSettings()
    async with AsyncExitStack() as stack:
        if isinstance(agent, (BlackboxAgent, DebuggerAgent)):
            spec = await stack.enter_async_context(agent.open(spec))
        yield PreparedAgent(agent=ManagedAgent(agent, context), spec=spec)


def _mini_swe_agent(settings: BashAgentSettings, cache: Path) -> Agent:
    try:
        from hone.integrations.mini_swe_agent.agent import make_mini_swe_agent
    except ModuleNotFoundError as error:
        raise ScaffoldError(
            "agent.kind = \"mini-swe-agent\" needs an extra: pip install 'hone[mini-swe-agent]'"
        ) from error
    return make_mini_swe_agent(settings, trajectories=cache / "mini-swe-agent")
