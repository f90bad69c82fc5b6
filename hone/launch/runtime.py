"""Components that all jobs of a process share: provider, grader and workspaces."""

from __future__ import annotations

import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

from hone.agents import AnyAgentSettings
from hone.config import RunSettings
from hone.environment import extract_patch
from hone.grading import Grader
from hone.launch.agents import open_agent
from hone.rollout.episode import RolloutContext
from hone.rollout.metering import Conversation
from hone.rollout.scoring import Scorers
from hone.sandbox import Provider, SandboxSpec, make_provider
from hone.tasks.workspace import GIT_ENV
from hone.types import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Runtime:
    """An open provider and its grader; the grader's cache is shared by all jobs."""

    provider: Provider
    grader: Grader
    workspaces: Path


@asynccontextmanager
async def open_runtime(settings: RunSettings) -> AsyncGenerator[Runtime]:
    """Open the provider and the grader. Raises ProviderUnavailable if sandboxes cannot be isolated."""
    async with make_provider(settings.sandbox) as provider:
        cache = settings.run_dir / "workspaces"
        grader = Grader(provider, settings.grading, cache=cache, limits=settings.sandbox.limits())
        yield Runtime(provider=provider, grader=grader, workspaces=cache)


@asynccontextmanager
async def open_context(
    runtime: Runtime,
    settings: RunSettings,
    agent: AnyAgentSettings,
    new_chat: Callable[[str, int], Conversation] | None,
    scorers: Scorers | None = None,
) -> AsyncGenerator[RolloutContext]:
    """Open the agent and yield the context of its rollouts.

    Args:
        new_chat: (rollout id, seed) -> conversation with the policy; None for a scripted agent.
        scorers: score single turns, for training.
    """
    bare = SandboxSpec(env=GIT_ENV, limits=settings.sandbox.limits(), run=str(settings.run_dir))
    async with open_agent(agent, bare, cache=settings.run_dir / "agents") as prepared_agent:
        yield RolloutContext(
            provider=runtime.provider,
            spec=prepared_agent.spec,
            agent=prepared_agent.agent,
            grader=runtime.grader,
            new_chat=new_chat,
            workspaces=runtime.workspaces,
            settings=settings.rollout,
            grading=settings.grading,
            extract=functools.partial(extract_patch, settings=settings.grading),
            scorers=scorers,
            sampler=Sampler(
                agent=agent.kind,
                engine=settings.engine.kind if new_chat is not None else None,
                sampling=settings.sampling.model_dump(),
                trainable=new_chat is not None and settings.engine.kind != "openai",
            ),
        )
