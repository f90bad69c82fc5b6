"""The policy in this process: a model, its tokenizer, and the engine that samples from the same weights."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hone.config import ConfigError, RunSettings
from hone.policy.chat import Chat
from hone.policy.engine import Engine, Sampling
from hone.policy.local import LocalEngine
from hone.policy.model import load_model, load_tokenizer, make_renderer

if TYPE_CHECKING:
    from renderers import Renderer
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    model: PreTrainedModel
    tokenizer: PreTrainedTokenizerBase
    renderer: Renderer


def load_policy(settings: RunSettings) -> Policy:
    """Raises ConfigError when no model is named, PolicyError for a folder that cannot be used."""
    if settings.model is None:
        raise ConfigError("no model is named: set model.path to a folder that transformers loads")
    tokenizer = load_tokenizer(settings.model.path)
    renderer = make_renderer(tokenizer, settings.model.renderer)
    model = load_model(settings.model.path, settings.model.dtype)
    return Policy(model=model, tokenizer=tokenizer, renderer=renderer)


@asynccontextmanager
async def open_engine(policy: Policy, settings: RunSettings) -> AsyncGenerator[LocalEngine]:
    engine = LocalEngine(policy.model, settings.engine)
    try:
        yield engine
    finally:
        await engine.close()


def chats(policy: Policy, engine: Engine, settings: RunSettings) -> Callable[[str, int], Chat]:
    """Opens the conversation of a rollout: (rollout id, seed) -> Chat; equal seeds draw equal replies."""

    def open_chat(rollout_id: str, seed: int) -> Chat:
        sampling = Sampling(**settings.sampling.model_dump(), seed=seed)
        return Chat(engine, policy.renderer, sampling, session=rollout_id)

    return open_chat
