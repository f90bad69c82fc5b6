"""Agents: scaffolds that turn a policy's replies into actions in a sandbox."""

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
    """The agent that `settings` describe. Raises ScaffoldError."""
    if settings.kind == "debugger":
        return DebuggerAgent.of(settings)
    if settings.kind == "blackbox":
        from hone.agents.blackbox import BlackboxAgent  # on use: its gateway is a web server

        return BlackboxAgent.of(settings)
    scaffold = load_scaffold(
        settings.prompts,
        turn_limit=settings.turn_limit,
        time_limit_s=settings.time_limit_s,
        command_timeout_s=settings.command_timeout_s,
    )
    if settings.kind == "bash":
        return BashAgent(scaffold, token_limit=settings.token_limit)
    if settings.kind == "demonstrator" and settings.shows == "debugger":
        return DebuggerDemonstrator(
            pdb=settings.pdb, accuracy=settings.accuracy, favourite=settings.favourite, seed=settings.seed
        )
    if settings.kind == "demonstrator":
        script = demonstrator(accuracy=settings.accuracy, favourite=settings.favourite, seed=settings.seed)
        return ScriptedAgent(scaffold, script)
    return ScriptedAgent(scaffold, {"oracle": oracle, "noop": noop}[settings.kind])
