"""Hone's bash agent as a harness: its loop runs in this process, its commands run in the sandbox.

Every reply comes from the endpoint that verifiers gives each run, which records the tokens.
"""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import dataclasses

import verifiers.v1 as vf

from hone.agents import AgentRun, BashAgent, load_scaffold
from hone.integrations.verifiers.runtime import HoneRuntime
from hone.outcomes import Outcome
from hone.policy.engine import ContextOverflow, Sampling
from hone.policy.engines.client import Http, new_session
from hone.policy.engines.openai import OpenAIChat
from hone.policy.settings import OpenAIEngineSettings
from hone.sandbox import SandboxError


class HoneHarnessConfig(vf.HarnessConfig):
    prompts: str = "default"
    """YAML file with prompts and limits: `default`, `tiny`, or a path to one in mini-swe-agent's format."""
    turn_limit: int | None = None
    """Replies per rollout, instead of the file's limit; 0: no limit."""
    command_timeout_s: float | None = None
    """Seconds per command, instead of the file's limit."""
    max_tokens: int = 4096
    """Longest reply, in tokens, unless the run's sampling sets another."""
    context_tokens: int = 32768
    """Context length of the model, in tokens."""


class HoneHarness(vf.Harness[HoneHarnessConfig]):
    NEEDS_CONTAINER = False
    EXECUTES_CODE = False  # of the model, on this machine

    def __init__(self, config: HoneHarnessConfig) -> None:
        super().__init__(config)
        self._agent = BashAgent(
            load_scaffold(
                config.prompts,
                turn_limit=config.turn_limit,
                time_limit_s=None,
                command_timeout_s=config.command_timeout_s,
            )
        )

    async def launch(
        self,
        ctx: vf.ModelContext,
        trace: vf.Trace,
        runtime: vf.Runtime,
        endpoint: str,
        secret: str,
        mcp_urls: dict[str, str],
        data: vf.TaskData,
    ) -> vf.ProgramResult:
        """Run the agent; a limit, or a sandbox that is gone, is for the grading to judge.

        Raises EngineError.
        """
        if not isinstance(runtime, HoneRuntime):
            raise TypeError("the harness of hone-verifiers runs in its own environment: leave --env.id unset")
        settings = OpenAIEngineSettings(
            urls=(endpoint,), model_name=ctx.model, context_tokens=self.config.context_tokens
        )
        task = dataclasses.replace(runtime.hone_task, problem=data.prompt_text)
        run = AgentRun(rollout_id=trace.id)
        async with new_session() as session:
            chat = OpenAIChat(
                Http(session, endpoint, key=secret), settings, Sampling(max_tokens=self.config.max_tokens)
            )
            try:
                await self._agent.run(task, runtime.sandbox, chat, run)
                runtime.limit = run.ending
            except ContextOverflow:
                runtime.limit = Outcome.CONTEXT_LIMIT
            except SandboxError as error:
                trace.info["sandbox_error"] = str(error)
        return vf.ProgramResult(0, "", "")
