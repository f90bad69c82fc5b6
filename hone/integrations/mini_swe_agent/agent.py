"""An agent that is the package's `DefaultAgent`, in a thread of its own.

    DefaultAgent.run -> model.query -> Chat.reply           (the policy, token-exact)
                     -> env.execute -> Sandbox.exec

The package parses replies, renders templates, counts limits and decides when to stop. It asks the same chat
as every other agent, without a server in between: the token tree holds exactly what the engine sampled.
"""

from __future__ import annotations

import math
import os
import time
from pathlib import Path
from typing import Any

import jinja2
from minisweagent.agents.default import AgentConfig, DefaultAgent
from minisweagent.config import builtin_config_dir

from hone.agents.bash import check_templates
from hone.agents.contract import AgentRun
from hone.agents.scaffold import Scaffold, ScaffoldError, load_scaffold
from hone.agents.settings import BashAgentSettings
from hone.integrations.bridge import Ask, in_thread
from hone.integrations.mini_swe_agent.model import TOKEN_LIMIT, PolicyModel, Rollout, SandboxEnvironment
from hone.outcomes import Outcome
from hone.policy.reply import Chat
from hone.sandbox.contract import Sandbox
from hone.types import Task

ENDINGS = {
    "Submitted": None,  # the grader decides
    "LimitsExceeded": Outcome.TURN_LIMIT,  # not the cost limit: the policy's replies cost nothing
    "TimeExceeded": Outcome.TIME_LIMIT,
    "RepeatedFormatError": Outcome.FORMAT_LIMIT,
    TOKEN_LIMIT: Outcome.TOKEN_LIMIT,
}


class MiniSweAgent:
    """Stateless; see `hone.agents.contract.Agent`.

    Args:
        trajectories: the directory for each rollout's `<rollout id>__<time_ns>.traj.json`, in the package's
            format, which the rollout's notes name; None: write none.
    Raises:
        ScaffoldError: the YAML is of the package's first generation.
    """

    def __init__(self, scaffold: Scaffold, *, token_limit: int = 0, trajectories: Path | None = None) -> None:
        if scaffold.generation != 2:
            raise ScaffoldError(
                "mini-swe-agent 2 takes model.observation_template, not agent.action_observation_template: "
                'use agent.kind = "bash" for prompts of version 1'
            )
        check_templates(scaffold)
        self._scaffold = scaffold
        self._token_limit = token_limit
        self._trajectories = trajectories

    async def run(self, task: Task, sandbox: Sandbox, chat: Chat, run: AgentRun) -> None:
        """Raises SandboxLost, EngineError, ContextOverflow, after the thread has ended."""

        def work(ask: Ask) -> str:
            rollout = Rollout(ask, sandbox, chat, run, self._scaffold, token_limit=self._token_limit)
            return self._work(rollout, task)

        try:
            status = await in_thread(work, name=f"mini-swe-agent {run.rollout_id}")
        except jinja2.TemplateError as error:
            raise ScaffoldError(f"a prompt template cannot be rendered: {error}") from error
        run.submitted = status == "Submitted"
        run.ending = ENDINGS[status]

    def _work(self, rollout: Rollout, task: Task) -> str:
        """Return the package's exit status."""
        model = PolicyModel(rollout)
        environment = SandboxEnvironment(rollout)
        agent = DefaultAgent(model, environment, **_agent_config(self._scaffold))
        try:
            return agent.run(task.problem)["exit_status"]
        finally:
            rollout.catch_up(agent.messages)
            rollout.run.notes["mini_swe_agent"] = self._note(agent, task, rollout.run.rollout_id)

    def _note(self, agent: DefaultAgent, task: Task, rollout_id: str) -> dict[str, Any]:
        """Write the trajectory; return its summary for the rollout's notes."""
        path = None
        if self._trajectories is not None:
            path = self._trajectories / f"{rollout_id.replace('/', '_')}__{time.time_ns()}.traj.json"
        info = agent.save(path, {"instance_id": task.id})["info"]
        kept = {key: info[key] for key in ("mini_version", "exit_status", "model_stats")}
        return kept | ({"trajectory": path.name} if path else {})


def make_mini_swe_agent(settings: BashAgentSettings, *, trajectories: Path | None = None) -> MiniSweAgent:
    """Return the agent that `settings` describe; `default` prompts are the package's `swebench`.

    Raises ScaffoldError.
    """
    scaffold = load_scaffold(
        str(_prompts(settings.prompts)),
        turn_limit=settings.turn_limit,
        time_limit_s=settings.time_limit_s,
        command_timeout_s=settings.command_timeout_s,
    )
    return MiniSweAgent(scaffold, token_limit=settings.token_limit, trajectories=trajectories)


def _prompts(name: str) -> Path | str:
    """Return the path of one of the package's YAML files, or `name` itself if it is a path."""
    if os.sep in name or name.endswith((".yaml", ".yml")):
        return name
    shipped = {path.stem: path for path in sorted(Path(builtin_config_dir).rglob("*.yaml"))}
    name = "swebench" if name == "default" else name
    if name not in shipped:
        names = ", ".join(sorted(shipped))
        raise ScaffoldError(f"mini-swe-agent has no prompts named {name!r}: use one of {names}, or a path")
    return shipped[name]


def _agent_config(scaffold: Scaffold) -> dict[str, Any]:
    return {
        "system_template": scaffold.system_template,
        "instance_template": scaffold.instance_template,
        "step_limit": scaffold.step_limit,
        "cost_limit": scaffold.written.get("cost_limit", AgentConfig.model_fields["cost_limit"].default),
        "wall_time_limit_seconds": math.ceil(scaffold.wall_time_limit_s),
        "max_consecutive_format_errors": scaffold.max_consecutive_format_errors,
    }
