"""One rollout in a sandbox of Hone, graded by Hone in another that its agent has never touched."""

# pyright: reportMissingImports=false, reportUnknownParameterType=false, reportUntypedBaseClass=false

from __future__ import annotations

import dataclasses
from contextlib import AsyncExitStack
from typing import Any

import verifiers.v1 as vf

from hone.grading import Grader, GradingSettings
from hone.integrations.task_sandbox import Graded, grade_sandbox, start_task, workspaces
from hone.integrations.verifiers.harness import HoneHarness, HoneHarnessConfig
from hone.integrations.verifiers.runtime import HoneRuntime
from hone.integrations.verifiers.taskset import HoneTaskset
from hone.outcomes import OUTCOME_RULES, Fault, Outcome
from hone.sandbox import Provider, SandboxError, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.errors import TaskError
from hone.tasks.workspace import GIT_ENV
from hone.types import Task


class HoneEnvConfig(vf.EnvConfig):
    # The harness needs no runtime of verifiers; validation would import the plug-in, which is being imported.
    agent: vf.AgentConfig = vf.AgentConfig.model_construct(
        harness=HoneHarnessConfig(id="hone-verifiers"), runtime=vf.SubprocessConfig()
    )
    """The policy."""
    sandbox: dict[str, Any] = {}  # noqa: RUF012 - pydantic copies it
    """Provider and limits: the group `sandbox` of a recipe."""
    grading: dict[str, Any] = {}  # noqa: RUF012
    """The group `grading` of a recipe."""


class HoneEnv(vf.Env[HoneEnvConfig]):
    """Records the reward 1 for a resolved task and 0 for one that is not.

    Invariant: an infrastructure fault is an error of the episode, without any reward.
    """

    taskset: HoneTaskset

    def __init__(self, config: HoneEnvConfig) -> None:
        super().__init__(config)
        if not isinstance(self.taskset, HoneTaskset) or not all(
            isinstance(harness, HoneHarness) for harness in self._harnesses.values()
        ):
            raise TypeError(
                "the environment of hone-verifiers runs its own tasks and harness: leave "
                "--env.agent.harness.id unset, and pass --env.taskset.id hone-verifiers"
            )
        self._sandbox = SandboxSettings(**config.sandbox)
        self._grading = GradingSettings(**config.grading)
        self._stack = AsyncExitStack()
        self._provider: Provider | None = None
        self._grader: Grader | None = None

    async def start(self) -> None:
        """Open the provider. Raises ProviderUnavailable."""
        self._provider = await self._stack.enter_async_context(make_provider(self._sandbox))
        self._grader = Grader(
            self._provider, self._grading, cache=workspaces(), limits=self._sandbox.limits()
        )

    async def stop(self) -> None:
        await self._stack.aclose()

    async def run(self, task: vf.Task, agents: vf.Agents) -> None:
        """Raises vf.SandboxError for an infrastructure fault."""
        assert self._provider is not None, "the environment is started"
        assert self._grader is not None
        own = self.taskset.tasks[task.data.id]
        spec = SandboxSpec(env=GIT_ENV, limits=self._sandbox.limits())
        try:
            sandbox = await start_task(own, self._provider, spec, self._grading)
        except (SandboxError, TaskError) as error:
            raise vf.SandboxError(f"{type(error).__name__}: {error}") from error
        runtime = HoneRuntime(sandbox, own)
        try:
            trace = await agents.agent.run(task, runtime=runtime)
            if trace.ok:
                record(trace, await self._judge(runtime, own))
        finally:
            await runtime.stop()

    async def _judge(self, runtime: HoneRuntime, task: Task) -> Graded:
        assert self._grader is not None
        limit = runtime.limit
        if limit is not None and not OUTCOME_RULES[limit].graded:
            return Graded(outcome=limit)
        graded = await grade_sandbox(runtime.sandbox, task, self._grader)
        if limit is not None and graded.outcome in (Outcome.NO_PATCH, Outcome.UNRESOLVED):
            return dataclasses.replace(graded, outcome=limit)
        return graded


def record(trace: vf.Trace, graded: Graded) -> None:
    """Record a reward; raise vf.SandboxError for an infrastructure fault, which is an error of the trace."""
    trace.info["hone"] = {"outcome": graded.outcome.value, "patch": graded.patch, "error": graded.error}
    if OUTCOME_RULES[graded.outcome].fault is Fault.INFRASTRUCTURE:
        fault = vf.SandboxError(f"{graded.outcome.value}: {graded.error}")
        trace.record_error(fault)
        raise fault
    trace.record_reward("resolved", float(graded.outcome is Outcome.RESOLVED))
    if graded.verdict is not None:
        tests = {name: status.value for name, status in graded.verdict.tests.items()}
        trace.info["hone"] |= {"tests": tests, "tampered": graded.verdict.tampered}
        trace.record_metric("score", graded.verdict.score)
