"""Agents: scaffolds that turn a policy's replies into actions in a sandbox."""

from hone.agents.bash import BashAgent
from hone.agents.contract import Agent, AgentRun
from hone.agents.debugger import DebuggerAgent
from hone.agents.scaffold import SUBMIT, Scaffold, ScaffoldError, load_scaffold
from hone.agents.scripted import DebuggerDemonstrator, ScriptedAgent, ScriptedChat, demonstrator, noop, oracle
from hone.agents.settings import (
    AgentSettings,
    AnyAgentSettings,
    BashAgentSettings,
    BlackboxAgentSettings,
    DebuggerAgentSettings,
    DemonstratorSettings,
    ScriptedAgentSettings,
)

__all__ = [
    "SUBMIT",
    "Agent",
    "AgentRun",
    "AgentSettings",
    "AnyAgentSettings",
    "BashAgent",
    "DebuggerAgent",
    "Scaffold",
    "ScaffoldError",
    "ScriptedAgent",
    "ScriptedChat",
    "demonstrator",
    "load_scaffold",
    "make_agent",
    "noop",
    "oracle",
]


def make_agent(settings: AgentSettings) -> Agent:
    """Return the agent that `settings` describe. Raises ScaffoldError."""
    if isinstance(settings, DebuggerAgentSettings):
        return DebuggerAgent(settings)
    if isinstance(settings, BlackboxAgentSettings):
        from hone.agents.blackbox import BlackboxAgent  # imports a web server

        return BlackboxAgent.of(settings)
    assert isinstance(settings, (BashAgentSettings, ScriptedAgentSettings, DemonstratorSettings))
    scaffold = load_scaffold(
        settings.prompts,
        turn_limit=settings.turn_limit,
        time_limit_s=settings.time_limit_s,
        command_timeout_s=settings.command_timeout_s,
    )
    if isinstance(settings, BashAgentSettings):
        return BashAgent(scaffold, token_limit=settings.token_limit)
    if isinstance(settings, ScriptedAgentSettings):
        return ScriptedAgent(scaffold, {"oracle": oracle, "noop": noop}[settings.kind])
    if settings.shows == "debugger":
        return DebuggerDemonstrator(settings)
    return ScriptedAgent(scaffold, demonstrator(settings))
