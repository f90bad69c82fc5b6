"""Agents: scaffolds that turn a policy's replies into actions in a sandbox."""

from typing import Any

from hone.agents.bash import BashAgent
from hone.agents.contract import Agent, AgentRun
from hone.agents.debugger import DebuggerAgent
from hone.agents.debugger.demonstrator import DebuggerDemonstrator
from hone.agents.scaffold import SUBMIT, Scaffold, ScaffoldError, load_scaffold
from hone.agents.scripted import ScriptedAgent, ScriptedChat, demonstrator, noop, oracle
from hone.agents.settings import AgentSettings

__all__ = [
    "SUBMIT",
    "Agent",
    "AgentRun",
    "AgentSettings",
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
    if settings.kind == "debugger":
        return DebuggerAgent.of(settings)
    if settings.kind == "blackbox":
        from hone.agents.blackbox import BlackboxAgent  # imports a web server

        return BlackboxAgent.of(settings)
    scaffold = load_scaffold(
        settings.prompts,
        turn_limit=settings.turn_limit,
        time_limit_s=settings.time_limit_s,
        command_timeout_s=settings.command_timeout_s,
    )
    if settings.kind == "bash":
        return BashAgent(scaffold, token_limit=settings.token_limit)
    if settings.kind != "demonstrator":
        return ScriptedAgent(scaffold, {"oracle": oracle, "noop": noop}[settings.kind])
    choices: dict[str, Any] = {name: getattr(settings, name) for name in ("accuracy", "favourite", "seed")}
    if settings.shows == "debugger":
        return DebuggerDemonstrator(pdb=settings.pdb, **choices)
    return ScriptedAgent(scaffold, demonstrator(**choices))
