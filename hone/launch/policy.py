"""The policy of a run: model, tokenizer, engine and conversations."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hone.config import ConfigError, RunSettings
from hone.launch.placement import engine_gpus, trainer_device, trainer_gpus
from hone.policy.chat import Chat
from hone.policy.engine import Engine, Sampling
from hone.policy.hub import PIN, find_model, pin_model
from hone.policy.model import load_model, load_tokenizer, make_renderer
from hone.policy.rendering import ChatRenderer
from hone.policy.settings import (
    Dtype,
    LocalEngineSettings,
    ModelSettings,
    OpenAIEngineSettings,
    TinkerEngineSettings,
)
from hone.rollout.metering import Conversation

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

NewChat = Callable[[str, int], Conversation]
"""(rollout id, seed) -> conversation; equal seeds sample equal replies."""


@dataclass(frozen=True, kw_only=True)
class Policy:
    settings: ModelSettings
    tokenizer: PreTrainedTokenizerBase
    renderer: ChatRenderer
    device: str = "cpu"  # of a trainer in this process and a local engine, as torch names it
    gpus: tuple[int, ...] | None = None  # of the trainer's ranks; None: the CPU

    @functools.cached_property
    def model(self) -> PreTrainedModel:
        """The weights; the first use loads them and blocks. Raises PolicyError."""
        return self.load_model()

    def load_model(self, dtype: Dtype | None = None) -> PreTrainedModel:
        """Return another copy of the weights on the same device; blocks. Raises PolicyError.

        `dtype`: default that of `settings`.
        """
        model: Any = load_model(self.settings.path, dtype or self.settings.dtype)
        return model.to(self.device)


def load_policy(settings: RunSettings) -> Policy:
    """Load the tokenizer of the policy; download a model of the hub on first use.

    `Policy.settings.path` is a folder. Raises ConfigError without a model, PolicyError for an unusable one.
    """
    if settings.model is None:
        raise ConfigError("model.path is missing: set it to a model folder, or to a model on the hub")
    model = find_model(settings.model, pin=settings.run_dir / PIN)
    tokenizer = load_tokenizer(model.path)
    renderer = make_renderer(tokenizer, model.renderer, thinking=model.thinking)
    return Policy(
        settings=model,
        tokenizer=tokenizer,
        renderer=renderer,
        device=trainer_device(settings),
        gpus=trainer_gpus(settings),
    )


def pin_policy(settings: RunSettings) -> None:
    """Record the commit of a hub model in the run directory, so that a resumed run starts from the same.

    Raises PolicyError if the model is not available.
    """
    if settings.model is not None:
        settings.run_dir.mkdir(parents=True, exist_ok=True)
        pin_model(settings.model, settings.run_dir / PIN)


def require_tokens(settings: RunSettings) -> None:
    """Raise ConfigError unless the engine returns the id and logprob of every sampled token."""
    if isinstance(settings.engine, OpenAIEngineSettings):
        raise ConfigError(
            'engine.kind = "openai" returns no token ids, which training needs: set it to '
            "local, vllm or sglang"
        )


def require_exact_sampling(settings: RunSettings) -> None:
    """Raise ConfigError unless replies are sampled from the distribution whose logprobs engines return."""
    if problem := sampling_problem(settings):
        raise ConfigError(problem)


def sampling_problem(settings: RunSettings) -> str | None:
    """Return why replies sampled so cannot be trained on, and what to do; None: they can."""
    sampling = settings.sampling
    if sampling.top_p == 1 and sampling.top_k == 0 and sampling.temperature > 0:
        return None
    return (
        "training needs the log-probabilities of the distribution that was sampled from: set "
        "sampling.top_p = 1, sampling.top_k = 0 and a temperature above 0"
    )


@asynccontextmanager
async def open_engine(
    policy: Policy, settings: RunSettings, say: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Engine]:
    """Open the engine of the policy; `say` receives the start-up status of servers.

    Raises ConfigError for an engine without tokens, EngineError, PolicyError.
    """
    if isinstance(settings.engine, LocalEngineSettings):
        from hone.policy.local import LocalEngine  # imports torch

        dtype = settings.engine.dtype
        model = await asyncio.to_thread(
            lambda: policy.load_model(dtype) if settings.engine_copies_weights else policy.model
        )
        engine = LocalEngine(model, settings.engine)
        try:
            yield engine
        finally:
            await engine.close()
    elif isinstance(settings.engine, OpenAIEngineSettings):
        raise ConfigError(
            'engine.kind = "openai" returns no token ids, for `hone eval` only: choose local, vllm or sglang'
        )
    elif isinstance(settings.engine, TinkerEngineSettings):
        from hone.launch.tinker import open_service_engine  # only where it is used

        async with open_service_engine(settings, policy.settings, policy.tokenizer) as service:
            yield service
    else:
        from hone.policy.engines.open import open_servers

        logs = settings.run_dir / "engine"
        async with open_servers(
            settings.engine,
            policy.settings,
            policy.tokenizer,
            logs=logs,
            say=say,
            gpus=engine_gpus(settings),
            sleeps=settings.placement.colocate,
            partial=settings.rollout.partial,
        ) as fleet:
            yield fleet


@asynccontextmanager
async def open_chats(
    settings: RunSettings, say: Callable[[str], None] = lambda _: None
) -> AsyncGenerator[Callable[[RunSettings], NewChat]]:
    """Open the engine, check it, and yield a function: settings (for their sampling) -> NewChat.

    Raises ConfigError, EngineError, PolicyError.
    """
    if isinstance(settings.engine, OpenAIEngineSettings):
        async with _open_endpoint(settings.engine) as new_chats:
            yield new_chats
        return
    policy = await asyncio.to_thread(load_policy, settings)
    async with open_engine(policy, settings, say) as engine:
        await engine.health()
        yield lambda sampled: chats(policy, engine, sampled)


def chats(policy: Policy, engine: Engine, settings: RunSettings) -> NewChat:
    """Return a function that opens conversations with the sampling of `settings`."""

    def open_chat(rollout_id: str, seed: int) -> Chat:
        return Chat(engine, policy.renderer, _sampling(settings, seed), session=rollout_id)

    return open_chat


@asynccontextmanager
async def _open_endpoint(
    engine: OpenAIEngineSettings,
) -> AsyncGenerator[Callable[[RunSettings], NewChat]]:
    from hone.policy.engines.client import Http, new_session
    from hone.policy.engines.open import read_api_key
    from hone.policy.engines.openai import OpenAIChat

    async with new_session() as session:
        http = Http(session, engine.urls[0], key=read_api_key(engine))
        await http.get("/models")

        def new_chats(sampled: RunSettings) -> NewChat:
            return lambda _, seed: OpenAIChat(http, engine, _sampling(sampled, seed))

        yield new_chats


def _sampling(settings: RunSettings, seed: int) -> Sampling:
    return Sampling(**settings.sampling.model_dump(), seed=seed)
