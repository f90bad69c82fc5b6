"""What tests of black-box agents are made of: real sandboxes, gateway and grader, and a scripted engine."""

from __future__ import annotations

import functools
import json
import os
import shutil
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from pydoc_data import topics
from typing import Any

import numpy as np
import pytest

from hone.agents.blackbox import BlackboxAgent, Program, load_program
from hone.agents.blackbox.layer import default_layers
from hone.agents.contract import AgentRun
from hone.grading import Grader, GradingSettings
from hone.policy.chat import Chat
from hone.policy.engine import Completion, ContextOverflow, EngineError, Finish, Sampling
from hone.policy.gateway import Gateway, SessionLimits
from hone.policy.model import make_renderer
from hone.policy.settings import TinyModelSettings
from hone.policy.tiny import make_tokenizer
from hone.rollout.episode import Episode, Parts, run_episode
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


def require(*programs: str) -> None:
    """End the test where a program is missing: skipped, but failed under CI."""
    missing = [program for program in programs if shutil.which(program) is None]
    if missing:
        end = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        end(f"{', '.join(missing)} is missing on this machine")


def texts() -> list[str]:
    """What the tokenizer is made for: technical English, so that prompts are short."""
    return [Path(str(topics.__file__)).read_text()]


@functools.cache
def tokenizer() -> Any:
    return make_tokenizer(texts(), MODEL)


@functools.cache
def renderer() -> Any:
    return make_renderer(tokenizer(), "qwen3")


def call(name: str, **arguments: Any) -> str:
    """A tool call as Qwen3 writes it."""
    return f"<tool_call>\n{json.dumps({'name': name, 'arguments': arguments})}\n</tool_call>"


def script(*replies: str) -> Answer:
    """One reply after another; the last one again and again."""
    return lambda i, prompt: replies[min(i, len(replies) - 1)]


@dataclass
class ScriptedEngine:
    """Answers what the script says, in tokens with log-probabilities; remembers what was asked and said."""

    answer: Answer
    context_tokens: int = 100_000
    version: int = 7
    fails_at: int | None = None
    asked: dict[str, list[list[int]]] = field(default_factory=dict[str, list[list[int]]])
    said: dict[str, list[Completion]] = field(default_factory=dict[str, list[Completion]])

    async def generate(self, prompt_ids: Any, sampling: Sampling, *, session: str) -> Completion:
        prompts, said = self.asked.setdefault(session, []), self.said.setdefault(session, [])
        if len(said) == self.fails_at:
            raise EngineError("the scripted engine is down")
        if len(prompt_ids) >= self.context_tokens:
            raise ContextOverflow(len(prompt_ids), self.context_tokens)
        text = self.answer(len(said), tokenizer().decode(list(prompt_ids)))
        ids = np.asarray(
            [*tokenizer().encode(text, add_special_tokens=False), sampling.stop_token_ids[0]], np.int32
        )
        completion = Completion(
            token_ids=ids,
            logprobs=-(np.arange(len(ids), dtype=np.float32) / 512 + len(said) / 8 + 7),
            version=np.full(len(ids), self.version, np.int32),
            finish=Finish.STOP,
        )
        prompts.append([int(token) for token in prompt_ids])
        said.append(completion)
        return completion

    async def release(self, session: str) -> None: ...

    async def set_version(self, version: int) -> None: ...

    async def pause(self) -> None: ...

    async def resume(self) -> None: ...

    async def health(self) -> None: ...

    async def close(self) -> None: ...


class Watched:
    """The agent, with observers of its turns, which are shown its sandbox."""

    def __init__(self, agent: BlackboxAgent) -> None:
        self.agent = agent
        self.observers: list[Callable[[Sandbox, Turn], Awaitable[None]]] = []

    async def run(self, task: Task, sandbox: Sandbox, chat: Any, run: AgentRun) -> None:
        run.observers += [functools.partial(observer, sandbox) for observer in self.observers]
        await self.agent.run(task, sandbox, chat, run)


@dataclass
class World:
    """Open parts; `attempt` runs a rollout."""

    parts: Parts
    engine: ScriptedEngine
    watched: Watched

    @property
    def gateway(self) -> Gateway:
        gateway = self.watched.agent._gateway
        assert gateway is not None
        return gateway

    async def attempt(self, task: Task, rollout_id: str = "r0") -> Trajectory:
        workspace = prepare_workspace(task, self.parts.workspaces)
        episode = Episode(task=task, rollout_id=rollout_id, group_id="g", workspace=workspace, seed=0)
        return await run_episode(episode, self.parts)


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
    """Real sandboxes, gateway and grading; `layers` is where tools of programs are kept, by default with
    those of real runs, and all else is below `root`."""
    agent = BlackboxAgent(program, limits or SessionLimits(), layers=layers or default_layers())
    watched = Watched(agent)
    renderer()  # made before the time of any rollout runs, which it would use up

    def new_chat(rollout_id: str, seed: int) -> Chat:
        return Chat(engine, renderer(), Sampling(max_tokens=512), session=rollout_id)

    async with (
        make_provider(SandboxSettings(state_dir=root / "state")) as provider,
        agent.open(SandboxSpec(limits=LIMITS)) as spec,
    ):
        parts = Parts(
            provider=provider,
            spec=spec,
            agent=watched,
            grader=Grader(provider, GradingSettings(), cache=root / "workspaces"),
            new_chat=new_chat,
            workspaces=root / "workspaces",
            settings=RolloutSettings(**rollout),
        )
        yield World(parts=parts, engine=engine, watched=watched)


def with_arguments(program: Program, *arguments: str) -> Program:
    """The program with further arguments, before all others."""
    command = program.run.command
    at = next(i for i, word in enumerate(command) if word.startswith("--"))
    run = program.run.model_copy(update={"command": (*command[:at], *arguments, *command[at:])})
    return program.model_copy(update={"run": run})


def qwen_code(*arguments: str) -> Program:
    require("node", "npm")
    return with_arguments(load_program("qwen-code"), *arguments)
