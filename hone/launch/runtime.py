"""Components that the jobs of a process share: provider, grader, agent and the scorers of turns."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.agents import Agent, AgentSettings, AnyAgentSettings, DebuggerAgent, ScaffoldError, make_agent
from hone.agents.blackbox import BlackboxAgent
from hone.agents.context import ManagedAgent
from hone.agents.settings import BashAgentSettings, ContextSettings, PolicyAgentSettings
from hone.config import ConfigError, RunSettings
from hone.environment import extract_patch
from hone.grading import Grader
from hone.grading.judge import Judge
from hone.grading.judge_prompt import control_tokens
from hone.launch.policy import open_chats
from hone.policy.hub import find_model
from hone.policy.model import load_tokenizer
from hone.policy.settings import AnyEngineSettings, ServerEngineSettings
from hone.rollout.busy import BusyShares
from hone.rollout.episode import RolloutContext
from hone.rollout.metering import Conversation
from hone.rollout.parking import open_parking
from hone.rollout.scoring import Scorers
from hone.sandbox import Provider, SandboxSpec, make_provider
from hone.tasks.workspace import GIT_ENV
from hone.types import Sampler
from hone.utils.busy import BusyMeter


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An open provider and its graders; each one's verdicts are shared by all jobs."""

    provider: Provider
    grader: Grader
    evaluation_grader: Grader  # runs all controls
    workspaces: Path


@asynccontextmanager
async def open_runtime(settings: RunSettings, workspaces: Path | None = None) -> AsyncGenerator[Runtime]:
    """Open the provider and the grader. Raises ProviderUnavailable if sandboxes cannot be isolated.

    `workspaces`: cache of the tasks' repositories; default: in the run directory.
    """
    async with make_provider(settings.sandbox) as provider:
        cache = workspaces or settings.run_dir / "workspaces"
        grader, evaluation_grader = (
            Grader(provider, grading, cache=cache, limits=settings.sandbox.limits())
            for grading in (settings.grading, settings.grading.of_evaluation())
        )
        yield Runtime(provider=provider, grader=grader, evaluation_grader=evaluation_grader, workspaces=cache)


@asynccontextmanager
async def open_context(
    runtime: Runtime,
    settings: RunSettings,
    agent: AnyAgentSettings | Agent,
    new_chat: Callable[[str, int], Conversation] | None,
    scorers: Scorers | None = None,
    *,
    evaluation: bool = False,
) -> AsyncGenerator[RolloutContext]:
    """Open the agent and yield the context of its rollouts.

    Args:
        agent: settings of one of Hone's agents, or an agent of the caller.
        new_chat: (rollout id, seed) -> conversation with the policy; None for a scripted agent.
        scorers: score single turns, for training.
        evaluation: whether gradings run all controls.
    """
    bare = SandboxSpec(env=GIT_ENV, limits=settings.sandbox.limits(), run=str(settings.run_dir))
    async with (
        open_parking(settings.rollout, runtime.provider, settings.sandbox.state_dir) as parking,
        open_agent(agent, bare, cache=settings.run_dir / "agents") as (opened, spec),
    ):
        yield RolloutContext(
            provider=runtime.provider,
            spec=spec,
            agent=opened,
            grader=runtime.evaluation_grader if evaluation else runtime.grader,
            new_chat=new_chat,
            workspaces=runtime.workspaces,
            settings=settings.rollout,
            grading=settings.grading,
            extract=functools.partial(extract_patch, settings=settings.grading),
            scorers=scorers,
            busy=BusyShares(
                engine=BusyMeter(_servers(settings.engine)),
                sandbox=BusyMeter(settings.rollout.sandboxes_at_once),
                parked=BusyMeter(settings.rollout.concurrent_episodes),
            ),
            parking=parking,
            sampler=Sampler(
                agent=agent.kind if isinstance(agent, AgentSettings) else type(agent).__name__,
                engine=settings.engine.kind if new_chat is not None else None,
                sampling=settings.sampling.model_dump(),
                trainable=new_chat is not None and settings.engine.kind != "openai",
            ),
        )


def _servers(engine: AnyEngineSettings) -> int:
    """Return the number of servers among which an engine divides the replies; a local one is one."""
    if engine.addresses:
        return len(engine.addresses)
    return engine.servers if isinstance(engine, ServerEngineSettings) else 1


@asynccontextmanager
async def open_agent(
    settings: AgentSettings | Agent, spec: SandboxSpec, *, cache: Path
) -> AsyncGenerator[tuple[Agent, SandboxSpec]]:
    """Yield the agent of `settings` and the spec of its sandboxes, which extends `spec`.

    `cache` stores the prepared tools of the agent. Raises ScaffoldError.
    """
    if not isinstance(settings, AgentSettings):
        agent = settings
    elif isinstance(settings, BashAgentSettings) and settings.kind == "mini-swe-agent":
        agent = _mini_swe_agent(settings, cache)
    else:
        agent = make_agent(settings)
    context = settings.context if isinstance(settings, PolicyAgentSettings) else ContextSettings()
    async with AsyncExitStack() as stack:
        if isinstance(agent, (BlackboxAgent, DebuggerAgent)):
            spec = await stack.enter_async_context(agent.open(spec))
        yield ManagedAgent(agent, context), spec


def _mini_swe_agent(settings: BashAgentSettings, cache: Path) -> Agent:
    try:
        from hone.integrations.mini_swe_agent.agent import make_mini_swe_agent
    except ModuleNotFoundError as error:
        raise ScaffoldError(
            "agent.kind = \"mini-swe-agent\" needs an extra: pip install 'hone-rl[mini-swe-agent]'"
        ) from error
    return make_mini_swe_agent(settings, trajectories=cache / "mini-swe-agent")


@asynccontextmanager
async def open_scorers(
    settings: RunSettings, say: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Scorers | None]:
    """Yield the scorers after a check of the judge's engine; None if no turn is scored.

    Raises ConfigError, EngineError, PolicyError.
    """
    if settings.judge.enabled:
        async with _open_judge(settings, say) as judge:
            yield Scorers(judge=judge, progress=settings.progress)
    else:
        yield Scorers(progress=settings.progress) if settings.progress.enabled else None


@asynccontextmanager
async def _open_judge(settings: RunSettings, say: Callable[[str], None]) -> AsyncGenerator[Judge]:
    own = settings.judge_as_policy()
    control: frozenset[str] = frozenset()
    if own.engine.kind != "openai":
        if own.model is None:
            raise ConfigError(
                "judge.model.path is missing: set it to a model folder, or to a model on the hub"
            )
        folder = (await asyncio.to_thread(find_model, own.model)).path
        control = control_tokens(await asyncio.to_thread(load_tokenizer, folder))
    async with open_chats(own, say) as new_chats:
        yield Judge(new_chats(own), settings.judge, control=control)
