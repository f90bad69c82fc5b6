"""Rollouts of black-box agents with real sandboxes, gateway and grader, and a scripted engine."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import pytest

from hone.agents.blackbox import BlackboxAgent, Program, is_prepared, load_program
from hone.agents.blackbox.layer import default_layers
from hone.agents.contract import AgentRun
from hone.agents.scaffold import ScaffoldError
from hone.grading import Grader, GradingSettings
from hone.policy.chat import Chat
from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.gateway import Gateway, SessionLimits
from hone.policy.model import make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.rollout.episode import Episode, RolloutContext, run_episode
from hone.rollout.settings import RolloutSettings
from hone.sandbox import Limits, Sandbox, SandboxSpec, make_provider
from hone.sandbox.settings import SandboxSettings
from hone.tasks.workspace import prepare as prepare_workspace
from hone.types import Task, Trajectory, Turn

LIMITS = Limits(memory_mib=1024)
MODEL = TinyModelSettings(
    vocab_size=6000, hidden_size=32, layers=1, heads=2, kv_heads=2, head_dim=16, intermediate_size=64
)
Answer = Callable[[int, str], str]  # (which call of the session, its prompt) -> the reply's text


def published(name: str, *arguments: str) -> Program:
    """Return a preset with further arguments; skip the test (fail it under CI) if it is not installed."""
    program = load_program(name)
    try:
        reason = "" if is_prepared(program, default_layers()) else f"the tools of {name} are not installed"
    except ScaffoldError as error:
        reason = str(error)
    if reason:
        end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        end(f"{reason}: run scripts/install-services.sh")
    if not arguments:
        return program
    command = program.run.command
    first_option = next(i for i, word in enumerate(command) if word.startswith("--"))
    changed = (*command[:first_option], *arguments, *command[first_option:])
    return program.model_copy(update={"run": program.run.model_copy(update={"command": changed})})


def texts() -> list[str]:
    """Return the text that the tokenizer is made from: technical English, so that prompts are short."""
    return [Path(str(topics.__file__)).read_text()]


@functools.cache
def tokenizer() -> Any:
    return make_tokenizer(texts(), MODEL)


@functools.cache
def renderer() -> Any:
    return make_renderer(tokenizer(), "qwen3")


def call(name: str, **arguments: Any) -> str:
    """Return a tool call in the format of Qwen3."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(*replies: str) -> Answer:
    """Return the replies in order, and then the last one again and again."""
    return lambda i, prompt: replies[min(i, len(replies) - 1)]


@dataclass
class ScriptedEngine:
    """Returns the texts of a script as tokens with logprobs; records prompts and completions."""

    answer: Answer
    context_tokens: int = 100_000
    version: int = 7
    fails_at: int | None = None
    prompts: dict[str, list[list[int]]] = field(default_factory=dict[str, list[list[int]]])
    completions: dict[str, list[Completion]] = field(default_factory=dict[str, list[Completion]])

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Completion:
        prompts, completions = self.prompts.setdefault(session, []), self.completions.setdefault(session, [])
        if len(completions) == self.fails_at:
            raise EngineError("the scripted engine is down")
        if len(prompt_ids) >= self.context_tokens:
            raise ContextOverflow(len(prompt_ids), self.context_tokens)
        text = self.answer(len(completions), tokenizer().decode(list(prompt_ids)))
        ids = np.asarray(
            [*tokenizer().encode(text, add_special_tokens=False), sampling.stop_token_ids[0]], np.int32
        )
        completion = Completion(
            token_ids=ids,
            logprobs=-(np.arange(len(ids), dtype=np.float32) / 512 + len(completions) / 8 + 7),
            version=np.full(len(ids), self.version, np.int32),
            finish=Finish.STOP,
        )
        prompts.append([int(token) for token in prompt_ids])
        completions.append(completion)
        return completion

    async def release(self, session: str) -> None: ...

    async def set_version(self, version: int) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...

    async def close(self) -> None: ...


class Watched:
    """The agent with observers of its turns, which get its sandbox."""

    def __init__(self, agent: BlackboxAgent) -> None:
        self.agent = agent
        self.observers: list[Callable[[Sandbox, Turn], Awaitable[None]]] = []
        self.sandboxes: list[Sandbox] = []

    async def run(self, task: Task, sandbox: Sandbox, chat: Any, run: AgentRun) -> None:
        self.sandboxes.append(sandbox)
        run.observers += [functools.partial(observer, sandbox) for observer in self.observers]
        await self.agent.run(task, sandbox, chat, run)


@dataclass
class World:
    """An open rollout context; `attempt` runs a rollout."""

    context: RolloutContext
    engine: ScriptedEngine
    watched: Watched

    @property
    def gateway(self) -> Gateway:
        gateway = self.watched.agent.gateway
        assert gateway is not None
        return gateway

    async def attempt(self, task: Task, rollout_id: str = "r0") -> Trajectory:
        workspace = prepare_workspace(task, self.context.workspaces)
        episode = Episode(task=task, rollout_id=rollout_id, group_id="g", workspace=workspace, seed=0)
        return await run_episode(episode, self.context)


@asynccontextmanager
async def open_world(
    root: Path,
    program: Program,
    engine: ScriptedEngine,
    *,
    limits: SessionLimits | None = None,
    layers: Path | None = None,
    **rollout: Any,
) -> AsyncGenerator[World]:
    """Open sandboxes, gateway and grader below `root`; `layers` is by default that of real runs."""
    agent = BlackboxAgent(program, limits or SessionLimits(), layers=layers or default_layers())
    watched = Watched(agent)
    renderer()  # slow to make: not within the time limit of a rollout

    def new_chat(rollout_id: str, seed: int) -> Chat:
        return Chat(engine, renderer(), Sampling(max_tokens=512), session=rollout_id)

    async with (
        make_provider(SandboxSettings(state_dir=root / "state")) as provider,
        agent.open(SandboxSpec(limits=LIMITS)) as spec,
    ):
        context = RolloutContext(
            provider=provider,
            spec=spec,
            agent=watched,
            grader=Grader(provider, GradingSettings(), cache=root / "workspaces"),
            new_chat=new_chat,
            workspaces=root / "workspaces",
            settings=RolloutSettings(**rollout),
        )
        yield World(context=context, engine=engine, watched=watched)
